/* Two ROUTER sockets. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "transport.h"

#define LINGER_MS 500
/* The sender, two frames, and one that is too many. */
#define MOST_PARTS 4
/* Besides the RUN requests that a client may have unanswered. */
#define SPARE_MESSAGES 8

typedef struct {
    void *context, *socket;
    int is_data;
    zmq_msg_t parts[MOST_PARTS + 1]; /* of the last message */
    size_t count;
} router;

static int begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

static void forget(router *r)
{
    while (r->count)
        zmq_msg_close(&r->parts[--r->count]);
}

/* Whether a message came; of what has too many frames the first ones are kept. */
static int take(router *r)
{
    int more = 1;
    while (more) {
        zmq_msg_t *part = &r->parts[r->count];
        int failed;
        zmq_msg_init(part);
        do
            failed = zmq_msg_recv(part, r->socket, 0) < 0;
        while (failed && r->count && zmq_errno() == EINTR);
        more = !failed && zmq_msg_more(part);
        if (failed || r->count == MOST_PARTS)
            zmq_msg_close(part);
        else
            r->count++;
    }
    return r->count > 0;
}

static bytes part_of(router *r, size_t which)
{
    return (bytes){zmq_msg_data(&r->parts[which]), zmq_msg_size(&r->parts[which])};
}

static enum came receive(void *socket, session *s, message *m)
{
    router *r = socket;
    int events = 0;
    size_t size = sizeof events, wanted = r->is_data ? 3 : 2;
    (void)s;
    forget(r);
    zmq_getsockopt(r->socket, ZMQ_EVENTS, &events, &size);
    *m = (message){.waited = events & ZMQ_POLLIN};
    if (!take(r))
        return NOTHING;
    m->peer = part_of(r, 0);
    if (r->count != wanted)
        m->damage = "a data message has 2 frames";
    for (size_t i = 1; i < wanted && !m->damage; i++)
        m->frames[i - 1] = part_of(r, i);
    return MESSAGE;
}

/* 0, or why it could not be sent. */
static int send_parts(router *r, const bytes *parts, size_t count, int flags)
{
    for (size_t i = 0; i < count; i++)
        while (zmq_send(r->socket, parts[i].data, parts[i].size, flags | (i + 1 < count ? ZMQ_SNDMORE : 0)) < 0)
            if (zmq_errno() != EINTR)
                return zmq_errno();
    return 0;
}

static void answer(void *socket, bytes peer, bytes frame)
{
    send_parts(socket, (bytes[]){peer, frame}, 2, ZMQ_DONTWAIT);
}

static int send_reply(void *socket, bytes peer, const reply *out)
{
    bytes parts[] = {peer, {out->header, HEADER_BYTES}, out->payload};
    return send_parts(socket, parts, 3, out->session ? 0 : ZMQ_DONTWAIT) != EHOSTUNREACH;
}

static void hurry(void *socket)
{
    int at_once = 0;
    zmq_setsockopt(((router *)socket)->socket, ZMQ_RCVTIMEO, &at_once, sizeof at_once);
    zmq_setsockopt(((router *)socket)->socket, ZMQ_SNDTIMEO, &at_once, sizeof at_once);
}

static void close_router(void *socket)
{
    router *r = socket;
    void *context = r->is_data ? NULL : r->context;
    forget(r);
    zmq_close(r->socket);
    if (context)
        zmq_ctx_term(context);
    free(r);
}

static router *new_router(void *context, const terms *t, int is_data, int ipv6)
{
    int idle = IDLE_MS, linger = LINGER_MS, one = 1, waiting = (int)t->credits + SPARE_MESSAGES;
    int patience = is_data ? (int)(1000 * t->lease_s) : 0;
    int64_t largest = is_data ? (int64_t)t->max_frame_bytes : LARGEST_CONTROL;
    router *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->context = context;
    r->is_data = is_data;
    r->socket = zmq_socket(context, ZMQ_ROUTER);
    zmq_setsockopt(r->socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    zmq_setsockopt(r->socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    zmq_setsockopt(r->socket, ZMQ_RCVTIMEO, &idle, sizeof idle);
    zmq_setsockopt(r->socket, ZMQ_SNDTIMEO, &patience, sizeof patience);
    zmq_setsockopt(r->socket, ZMQ_RCVHWM, &waiting, sizeof waiting);
    zmq_setsockopt(r->socket, ZMQ_SNDHWM, &waiting, sizeof waiting);
    zmq_setsockopt(r->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(r->socket, ZMQ_IPV6, &ipv6, sizeof ipv6);
    return r;
}

/* NULL, or why this server does not listen there. */
static const char *objection_to(const char *address)
{
    char *rest;
    if (begins(address, "ipc://"))
        return NULL;
    if (!begins(address, "tcp://127.0.0.1:") && !begins(address, "tcp://[::1]:"))
        return "without keys a device listens to its own host alone: unix://PATH, ipc://PATH, tcp://127.0.0.1:PORT or "
               "tcp://[::1]:PORT";
    const char *port = strrchr(address, ':') + 1;
    long number = strtol(port, &rest, 10);
    return *port && !*rest && number >= 0 && number < 65535 ? NULL : "the port is 0 to 65534, and the next one is for control";
}

/* Whether another server has an ipc path: ZeroMQ would take it away without a word. */
static int is_served(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int probe = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int served = !connect(probe, (struct sockaddr *)&address, sizeof address);
    close(probe);
    return served;
}

/* Whether it listens at `address`; else errno says why not. */
static int listens(router *r, const char *address)
{
    const char *path = begins(address, "ipc://") ? address + 6 : NULL;
    if (path && is_served(path)) {
        errno = EADDRINUSE;
        return 0;
    }
    return !zmq_bind(r->socket, address) && (!path || !chmod(path, 0600));
}

/* The control socket has the next port, or the path + .control. */
static int bind_both(router *data, router *control, const char *wanted, char bound[ADDRESS_BYTES])
{
    char beside[ADDRESS_BYTES + 16];
    size_t length = strlen(wanted);
    for (int tries = !strcmp(wanted + length - 2, ":0") ? 100 : 1; tries; tries--) {
        size_t size = ADDRESS_BYTES;
        if (!listens(data, wanted) || zmq_getsockopt(data->socket, ZMQ_LAST_ENDPOINT, bound, &size))
            return 0;
        char *colon = strrchr(bound, ':');
        if (begins(bound, "ipc://"))
            snprintf(beside, sizeof beside, "%s.control", bound);
        else
            snprintf(beside, sizeof beside, "%.*s:%d", (int)(colon - bound), bound, atoi(colon + 1) + 1);
        if (listens(control, beside))
            return 1;
        zmq_unbind(data->socket, bound);
    }
    return 0;
}

static const char *open_both(const char *address, const terms *t, char bound[ADDRESS_BYTES], void **data, void **control)
{
    const char *objection = objection_to(address);
    int ipv6 = begins(address, "tcp://[");
    if (objection)
        return objection;
    void *context = zmq_ctx_new();
    *data = new_router(context, t, 1, ipv6);
    *control = new_router(context, t, 0, ipv6);
    if (!*data || !*control)
        return "no memory";
    return bind_both(*data, *control, address, bound) ? NULL : zmq_strerror(zmq_errno());
}

const transport zmq_sockets = {open_both, receive, answer, send_reply, hurry, close_router};
