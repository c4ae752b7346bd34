/* Two ROUTER sockets around session.c: this thread drives the device, another one answers on the control socket. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "session.h"

#define ADDRESS_BYTES 160
#define IDLE_MS 50
#define LINGER_MS 500
#define TURN_AWAY_S 0.5
/* The sender, two frames, and one that is too many. */
#define MOST_PARTS 4

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void to_stderr(const char *line) { fprintf(stderr, "board_server: %s\n", line); }

/* ---- messages -------------------------------------------------------------------------------------------------- */

typedef struct {
    zmq_msg_t parts[MOST_PARTS + 1];
    bytes frames[MOST_PARTS];
    size_t count;
} message;

static void forget(message *m)
{
    for (size_t i = 0; i < m->count; i++)
        zmq_msg_close(&m->parts[i]);
    m->count = 0;
}

/* Whether a message came; of what has too many frames the first ones are kept. */
static int receive(void *socket, message *m)
{
    int more = 1;
    m->count = 0;
    while (more) {
        zmq_msg_t *part = &m->parts[m->count < MOST_PARTS ? m->count : MOST_PARTS];
        zmq_msg_init(part);
        int failed;
        do
            failed = zmq_msg_recv(part, socket, 0) < 0;
        while (failed && m->count && zmq_errno() == EINTR);
        more = !failed && zmq_msg_more(part);
        if (failed || m->count == MOST_PARTS)
            zmq_msg_close(part);
        else
            m->frames[m->count++] = (bytes){zmq_msg_data(part), zmq_msg_size(part)};
    }
    return m->count > 0;
}

/* 0, or why it could not be sent. */
static int send_parts(void *socket, const bytes *parts, size_t count, int flags)
{
    for (size_t i = 0; i < count; i++)
        while (zmq_send(socket, parts[i].data, parts[i].size, flags | (i + 1 < count ? ZMQ_SNDMORE : 0)) < 0)
            if (zmq_errno() != EINTR)
                return zmq_errno();
    return 0;
}

/* ---- the two threads ------------------------------------------------------------------------------------------- */

typedef struct {
    session *s;
    void *socket;
} answering;

static void *answer_control(void *given)
{
    answering *a = given;
    uint8_t answer[CONTROL_ROOM];
    message m;
    while (!session_is_over(a->s)) {
        if (!receive(a->socket, &m))
            continue;
        size_t size = session_control(a->s, m.frames + 1, m.count - 1, now(), answer);
        if (size)
            send_parts(a->socket, (bytes[]){m.frames[0], {answer, size}}, 2, ZMQ_DONTWAIT);
        forget(&m);
    }
    return NULL;
}

/* Takes one request up, if one comes; whether one came. `empty` is when nobody was waiting the last time. */
static int attend_data(session *s, void *socket, double *empty)
{
    message m;
    reply out;
    int events = 0;
    size_t size = sizeof events;
    zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
    int waited = events & ZMQ_POLLIN;
    if (!waited)
        *empty = now();
    if (!receive(socket, &m))
        return 0;
    double came = now();
    if (session_data(s, m.frames[0], m.frames + 1, m.count - 1, came, waited ? *empty : came, &out)) {
        bytes parts[] = {m.frames[0], {out.header, HEADER_BYTES}, out.payload};
        int failed = send_parts(socket, parts, 3, out.session ? 0 : ZMQ_DONTWAIT);
        session_sent(s, &out, failed != EHOSTUNREACH);
    }
    forget(&m);
    return 1;
}

static void drive(session *s, void *socket)
{
    double empty = now();
    int at_once = 0;
    while (!ended) {
        attend_data(s, socket, &empty);
        session_look(s, now());
    }
    /* Those who wait are told why nobody does what they asked; for a moment, however many go on asking. */
    session_stop(s);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &at_once, sizeof at_once);
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &at_once, sizeof at_once);
    for (double until = now() + TURN_AWAY_S; now() < until && attend_data(s, socket, &empty);)
        ;
    session_look(s, now());
}

/* ---- where it listens ------------------------------------------------------------------------------------------ */

static int begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

/* NULL, or why this server does not listen there. */
static const char *objection_to(const char *address)
{
    char *rest;
    if (strlen(address) > 104)
        return "an address has at most 104 characters";
    if (begins(address, "ipc://"))
        return NULL;
    if (!begins(address, "tcp://127.0.0.1:") && !begins(address, "tcp://[::1]:"))
        return "without keys a device listens to its own host alone: ipc://PATH, tcp://127.0.0.1:PORT or tcp://[::1]:PORT";
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

/* Whether `socket` listens at `address`; else errno says why not. */
static int listens(void *socket, const char *address)
{
    const char *path = begins(address, "ipc://") ? address + 6 : NULL;
    if (path && is_served(path)) {
        errno = EADDRINUSE;
        return 0;
    }
    return !zmq_bind(socket, address) && (!path || !chmod(path, 0600));
}

/* Binds both sockets: the control socket has the next port, or the path + .control. `bound` is where data came to be. */
static int bind_both(void *data, void *control, const char *wanted, char bound[ADDRESS_BYTES])
{
    char beside[ADDRESS_BYTES + 16];
    size_t size = ADDRESS_BYTES;
    int any = strlen(wanted) > 2 && !strcmp(wanted + strlen(wanted) - 2, ":0");
    for (int tries = any ? 100 : 1; tries; tries--) {
        size = ADDRESS_BYTES;
        if (!listens(data, wanted) || zmq_getsockopt(data, ZMQ_LAST_ENDPOINT, bound, &size))
            return 0;
        char *colon = strrchr(bound, ':');
        if (begins(bound, "ipc://"))
            snprintf(beside, sizeof beside, "%s.control", bound);
        else
            snprintf(beside, sizeof beside, "%.*s:%d", (int)(colon - bound), bound, atoi(colon + 1) + 1);
        if (listens(control, beside))
            return 1;
        zmq_unbind(data, bound);
    }
    return 0;
}

static void *router(void *context, const terms *t, size_t max_frame_bytes, int patience_ms, int ipv6)
{
    int idle = IDLE_MS, linger = LINGER_MS, one = 1, waiting = (int)t->credits + 8;
    int64_t largest = (int64_t)max_frame_bytes;
    void *socket = zmq_socket(context, ZMQ_ROUTER);
    zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &idle, sizeof idle);
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &waiting, sizeof waiting);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &waiting, sizeof waiting);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6);
    return socket;
}

static int stop_with(const char *what, const char *why)
{
    fprintf(stderr, "board_server: %s: %s\n", what, why);
    return 1;
}

static int usage(void)
{
    fprintf(stderr, "usage: board_server [-l LEASE_S] [-c CREDITS] [-m MAX_FRAME_BYTES] [ADDRESS]\n"
                    "ADDRESS is tcp://127.0.0.1:5555 (the default; port 0: any), tcp://[::1]:PORT or ipc://PATH.\n"
                    "LEASE_S is 0.1 to 3600 (10), CREDITS 1 to 1024 (8), MAX_FRAME_BYTES 4096 to 2^30 (2^24).\n");
    return 2;
}

int main(int count, char **arguments)
{
    char bound[ADDRESS_BYTES], why[WHY_BYTES] = "";
    terms t = {.address = bound, .lease_s = 10, .credits = 8, .max_frame_bytes = 1u << 24, .log = to_stderr};
    double largest = (double)t.max_frame_bytes, credits = t.credits;
    for (int option; (option = getopt(count, arguments, "l:c:m:")) != -1;) {
        double *number = option == 'l' ? &t.lease_s : option == 'c' ? &credits : option == 'm' ? &largest : NULL;
        char *rest = "";
        if (number)
            *number = strtod(optarg, &rest);
        if (!number || *rest)
            return usage();
    }
    if (!(t.lease_s >= 0.1 && t.lease_s <= 3600 && credits >= 1 && credits <= 1024) || count > optind + 1 ||
        !(largest >= 4096 && largest <= 1u << 30))
        return usage();
    t.credits = (uint32_t)credits;
    t.max_frame_bytes = (size_t)largest;
    const char *address = optind < count ? arguments[optind] : "tcp://127.0.0.1:5555";
    const char *objection = objection_to(address);
    if (objection)
        return stop_with(address, objection);

    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);

    void *context = zmq_ctx_new();
    int ipv6 = begins(address, "tcp://[");
    void *data = router(context, &t, t.max_frame_bytes, (int)(1000 * t.lease_s), ipv6);
    void *control = router(context, &t, LARGEST_CONTROL, 0, ipv6);
    if (!bind_both(data, control, address, bound))
        return stop_with(address, zmq_strerror(zmq_errno()));
    session *s = session_new(&t, now(), why);
    if (!s)
        return stop_with("the device", why);
    answering a = {s, control};
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer_control, &a))
        return stop_with(address, "no second thread");
    printf("kind: zmq\naddress: %s\n", bound);
    fflush(stdout);
    drive(s, data);
    zmq_close(data);
    pthread_join(thread, NULL);
    zmq_close(control);
    int unsafe = session_free(s, why);
    zmq_ctx_term(context);
    return unsafe ? stop_with("the end", why), 3 : 0;
}
