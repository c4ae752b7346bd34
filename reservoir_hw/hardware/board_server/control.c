/* What is asked on the control socket, and answered beside the device: hello, ping, cancel, goodbye, status. */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "state.h"

#define SLOT_UNIT 4096
#define LARGEST_SLOT (1u << 30)

typedef struct {
    bytes peer, map, id;
    double now;
    writer answer;
    char why[512];
} question;

static int deny(question *q, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(q->why, sizeof q->why, format, arguments);
    va_end(arguments);
    return code;
}

static int has(const question *q, const char *name, mp_type type, mp_value *v)
{
    bytes raw;
    return mp_find(q->map, name, &raw, v) && v->type == type;
}

/* An integer; a negative one is 0, which is no session and no request. */
static int has_number(const question *q, const char *name, uint64_t *number)
{
    mp_value v;
    int found = has(q, name, MP_INT, &v);
    *number = found && !v.negative ? v.number : 0;
    return found;
}

/* Begins an answer; its fields are to be written behind it. */
static writer *answer_begin(question *q, const char *op, size_t fields)
{
    writer *w = &q->answer;
    w->size = 0;
    control_begin(w);
    write_map(w, 2 + fields);
    entry_text(w, "op", op);
    write_text(w, "id");
    write_raw(w, q->id.data, q->id.size);
    return w;
}

/* A session below 2^53 that nobody can guess, or 0. */
static uint64_t new_session(void)
{
    uint8_t draw[8];
    FILE *source = fopen("/dev/urandom", "rb");
    size_t got = source ? fread(draw, 1, sizeof draw, source) : 0;
    if (source)
        fclose(source);
    return got == sizeof draw ? get_number(draw, 8) >> 11 | 1 : 0;
}

/* What a client wants over Unix sockets: nothing that is said means checksums and no ring. Whether it makes sense. */
static int has_wishes(session *s, const question *q, int *checksums, uint64_t *slot_bytes)
{
    bytes raw;
    mp_value v;
    *checksums = 1;
    *slot_bytes = 0;
    if (!s->t.offers_rings)
        return 1;
    if (mp_find(q->map, "checksums", &raw, &v) && v.type != MP_BOOL)
        return 0;
    if (has(q, "checksums", MP_BOOL, &v))
        *checksums = (int)v.number;
    return !mp_find(q->map, "slot_bytes", &raw, &v) ||
           (has_number(q, "slot_bytes", slot_bytes) && !v.negative && *slot_bytes % SLOT_UNIT == 0 &&
            *slot_bytes <= LARGEST_SLOT);
}

static void grant(session *s, const mp_value *client, const mp_value *nonce)
{
    size_t size = client->size < 200 ? client->size : 200;
    char since[16];
    time_t now = time(NULL);
    struct tm local;
    while (size && size < client->size && client->data[size] >> 6 == 2)
        size--;
    strftime(since, sizeof since, "%H:%M:%S", localtime_r(&now, &local));
    snprintf(s->holder, sizeof s->holder, "%.*s since %s", (int)size, (const char *)client->data, since);
    clean(s->holder);
    memcpy(s->nonce, nonce->data, NONCE_BYTES);
    s->number = new_session();
    s->received = s->finished = s->cancelled = 0;
    s->clients++;
    say(s, "%s has the device", s->holder);
}

static int knows_version(bytes list)
{
    mp_value versions, version;
    int known = 0;
    mp_read(&list, &versions);
    for (size_t i = 0; i < versions.size; i++, mp_skip(&list)) {
        bytes one = list;
        mp_read(&one, &version);
        known |= version.type == MP_INT && version.number == PROTOCOL_VERSION;
    }
    return known;
}

static int hello(session *s, question *q)
{
    mp_value versions, client, nonce;
    bytes list;
    int checksums;
    uint64_t slot_bytes;
    if (!mp_find(q->map, "versions", &list, &versions) || versions.type != MP_LIST || !has(q, "client", MP_TEXT, &client) ||
        !has(q, "nonce", MP_BIN, &nonce) || nonce.size != NONCE_BYTES)
        return deny(q, E_MALFORMED, "hello needs versions (list), client (text) and nonce (16 bytes)");
    if (!knows_version(list))
        return deny(q, E_VERSION, "this device speaks version %d of the protocol", PROTOCOL_VERSION);
    if (s->stopping)
        return deny(q, E_SHUTTING_DOWN, "the server is shutting down");
    if (s->number && memcmp(s->nonce, nonce.data, NONCE_BYTES))
        return deny(q, E_BUSY, "%s is in use by %s", s->device, s->holder);
    if (!has_wishes(s, q, &checksums, &slot_bytes))
        return deny(q, E_MALFORMED, "checksums is a truth value, and slot_bytes a multiple of 4096 up to 2^30");
    if (!s->number) {
        grant(s, &client, &nonce);
        s->checksums = checksums;
        s->slot_bytes = slot_bytes;
        s->driver.size = 0;
    }
    if (!s->number)
        return deny(q, E_INTERNAL, "this host gives no random numbers");
    remember(&s->greeter, q->peer);
    s->heard = q->now;
    writer *w = answer_begin(q, "welcome", s->t.offers_rings ? 9 : 7);
    if (s->t.offers_rings) {
        entry_bool(w, "checksums", s->checksums);
        entry_int(w, "slot_bytes", s->slot_bytes);
    }
    entry_int(w, "version", PROTOCOL_VERSION);
    entry_int(w, "session", s->number);
    entry_double(w, "lease_s", s->t.lease_s);
    entry_int(w, "credits", s->t.credits);
    entry_int(w, "max_frame_bytes", s->t.max_frame_bytes);
    entry_text(w, "server", "board_server");
    entry_text(w, "device", s->device);
    return 0;
}

static int pong(session *s, question *q, uint64_t number)
{
    int valid = heard(s, number, q->now);
    writer *w = answer_begin(q, "pong", 4);
    entry_bool(w, "valid", valid);
    entry_int(w, "received", valid ? s->received : 0);
    entry_int(w, "finished", valid ? s->finished : 0);
    write_text(w, "busy");
    if (!valid || !s->busy.request) {
        write_nil(w);
        return 0;
    }
    write_map(w, 3);
    entry_int(w, "request", s->busy.request);
    entry_text(w, "operation", name_of(s->busy.operation));
    entry_double(w, "seconds", q->now - s->busy.since);
    return 0;
}

static int status(session *s, question *q)
{
    const struct { const char *name; uint64_t count; } counters[] = {
        {"steps", s->steps}, {"clients", s->clients}, {"requests", s->requests}, {"errors", s->errors},
        {"repeated", s->repeated}, {"damaged", s->damaged}, {"foreign", s->foreign},
        {"safe_states", s->safe_states}, {"expired_leases", s->expired_leases},
    };
    size_t count = sizeof counters / sizeof *counters;
    writer *w = answer_begin(q, "status", 1);
    write_text(w, "status");
    write_map(w, 6);
    entry_text(w, "device", s->device);
    entry_text(w, "address", s->t.address);
    entry_text(w, "holder", s->number ? s->holder : NULL);
    entry_double(w, "uptime_s", q->now - s->started);
    entry_text(w, "problem", *s->problem ? s->problem : NULL);
    write_text(w, "counters");
    write_map(w, count);
    for (size_t i = 0; i < count; i++)
        entry_int(w, counters[i].name, counters[i].count);
    return 0;
}

static int is(const mp_value *text, const char *word)
{
    return text->size == strlen(word) && !memcmp(text->data, word, text->size);
}

/* With the guard held: 0, or the code of the error whose text is in q->why. */
static int answer_to(session *s, question *q, const mp_value *op)
{
    uint64_t number, request;
    int with_session = has_number(q, "session", &number), with_request = has_number(q, "request", &request);
    int cancels = is(op, "cancel"), leaves = is(op, "goodbye");
    if (is(op, "hello"))
        return hello(s, q);
    if (is(op, "status"))
        return status(s, q);
    if (is(op, "release"))
        return deny(q, E_CONFIGURATION, "this device is not hanging");
    if (is(op, "ping") && with_session)
        return pong(s, q, number);
    if (!with_session || !((cancels && with_request) || leaves))
        return deny(q, E_MALFORMED, "this is no control message, or its fields are missing");
    if (!heard(s, number, q->now))
        return deny(q, E_NO_SESSION, "this session does not hold the device");
    if (leaves) {
        say(s, "%s says goodbye", s->holder);
        s->number = 0;
    } else if (request > s->cancelled) {
        s->cancelled = request;
    }
    answer_begin(q, "ok", 0);
    return 0;
}

size_t session_control(session *s, const message *m, double now, uint8_t answer[CONTROL_ROOM])
{
    question q = {.peer = m->peer, .now = now, .answer = {answer, 0, CONTROL_ROOM, 0}};
    mp_value op, id;
    int taken = !m->damage && control_read(m->frames[0], &q.map) && has(&q, "op", MP_TEXT, &op) &&
                mp_find(q.map, "id", &q.id, &id) && id.type == MP_INT;
    pthread_mutex_lock(&s->guard);
    s->damaged += !taken;
    int code = taken ? answer_to(s, &q, &op) : 0;
    pthread_mutex_unlock(&s->guard);
    if (!taken)
        return 0;
    if (code) {
        clean(q.why);
        writer *w = answer_begin(&q, "error", 2);
        entry_int(w, "code", (uint64_t)code);
        entry_text(w, "text", q.why);
    }
    control_end(&q.answer);
    return q.answer.size;
}
