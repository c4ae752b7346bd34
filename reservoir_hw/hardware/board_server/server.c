/* A device server: this thread drives the device, another one answers on the control socket. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"

#define TURN_AWAY_S 0.5

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

typedef struct {
    const transport *way;
    session *s;
    void *data, *control;
    double empty; /* when nothing was waiting on the data socket */
} server;

static void *answer_control(void *given)
{
    server *v = given;
    uint8_t answer[CONTROL_ROOM];
    message m;
    while (!session_is_over(v->s)) {
        enum came came = v->way->receive(v->control, v->s, &m);
        size_t size = came == MESSAGE ? session_control(v->s, &m, now(), answer) : 0;
        if (size)
            v->way->answer(v->control, m.peer, (bytes){answer, size});
        if (came == GONE)
            session_gone(v->s, m.peer);
    }
    return NULL;
}

/* Takes one request up, if one comes; whether one came. */
static int attend_data(server *v)
{
    message m;
    reply out;
    double before = now();
    enum came came = v->way->receive(v->data, v->s, &m);
    if (!m.waited)
        v->empty = before;
    if (came == GONE)
        session_gone(v->s, m.peer);
    m.arrived = m.waited ? v->empty : now();
    if (came == MESSAGE && session_data(v->s, &m, now(), &out))
        session_sent(v->s, &out, v->way->reply(v->data, m.peer, &out));
    return came == MESSAGE;
}

static void drive(server *v)
{
    v->empty = now();
    while (!ended) {
        attend_data(v);
        session_look(v->s, now());
    }
    /* Those who wait are told why nobody does what they asked; for a moment, however many go on asking. */
    session_stop(v->s);
    v->way->hurry(v->data);
    for (double until = now() + TURN_AWAY_S; now() < until && attend_data(v);)
        ;
    session_look(v->s, now());
}

static int stop_with(const char *what, const char *why)
{
    fprintf(stderr, "board_server: %s: %s\n", what, why);
    return 1;
}

static int usage(void)
{
    fprintf(stderr, "usage: board_server [-l LEASE_S] [-c CREDITS] [-m MAX_FRAME_BYTES] [ADDRESS]\n"
                    "ADDRESS is tcp://127.0.0.1:5555 (the default; port 0: any), tcp://[::1]:PORT, ipc://PATH or unix://PATH.\n"
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
    if (strlen(address) > LONGEST_ADDRESS)
        return stop_with(address, "an address has at most 104 characters");
    t.offers_rings = !strncmp(address, "unix://", 7);

    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);

    server v = {.way = t.offers_rings ? &unix_sockets : &zmq_sockets};
    const char *problem = v.way->open(address, &t, bound, &v.data, &v.control);
    if (problem)
        return stop_with(address, problem);
    v.s = session_new(&t, now(), why);
    if (!v.s)
        return stop_with("the device", why);
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer_control, &v))
        return stop_with(address, "no second thread");
    printf("kind: zmq\naddress: %s\n", bound);
    fflush(stdout);
    drive(&v);
    v.way->close(v.data);
    pthread_join(thread, NULL);
    v.way->close(v.control);
    int unsafe = session_free(v.s, why);
    return unsafe ? stop_with("the end", why), 3 : 0;
}
