/* What the parts of a session share: the texts of errors and of the log, and who was heard. */
#include <stdarg.h>
#include <stdio.h>

#include "state.h"

const char *name_of(int operation)
{
    static const char *const names[] = {"?", "ATTACH", "RESET", "RUN", "SNAPSHOT", "RESTORE", "TRANSITION", "UPLOAD",
                                        "READOUT"};
    return names[operation >= OP_ATTACH && operation <= OP_READOUT ? operation : 0];
}

void clean(char *text)
{
    int utf8 = text_is_utf8((bytes){(const uint8_t *)text, strlen(text)});
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7F || (c >= 0x80 && !utf8))
            *text = '?';
    }
}

int refuse(session *s, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->why, sizeof s->why, format, arguments);
    va_end(arguments);
    return code;
}

void say(const session *s, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    if (!s->t.log)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    s->t.log(line);
}

int heard(session *s, uint64_t number, double at)
{
    if (!number || number != s->number)
        return 0;
    if (at > s->heard)
        s->heard = at;
    return 1;
}

void remember(connection *c, bytes peer)
{
    c->size = peer.size < PEER_BYTES ? peer.size : PEER_BYTES;
    memcpy(c->name, peer.data, c->size);
}

int is_from(const connection *c, bytes peer)
{
    return c->size == peer.size && !memcmp(c->name, peer.data, c->size);
}
