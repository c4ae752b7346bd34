/* What the parts of a session share. session.c calls operations.c, and neither that nor control.c calls back. */
#ifndef STATE_H
#define STATE_H

#include <pthread.h>

#include "session.h"

#define NONCE_BYTES 16
#define HOLDER_BYTES 240
#define PEER_BYTES 256
/* Of an error without its states. */
#define ERROR_BYTES 1024

typedef struct {
    uint8_t name[PEER_BYTES];
    size_t size;
} connection;

struct session {
    terms t;
    char device[WHY_BYTES]; /* its name, for people */
    double started;

    pthread_mutex_t guard; /* of all up to the next comment */
    uint64_t number;       /* the session that has the device, 0: none */
    uint8_t nonce[NONCE_BYTES];
    char holder[HOLDER_BYTES];
    double heard;
    int checksums;       /* of payloads */
    uint64_t slot_bytes; /* of the ring in shared memory, 0: none */
    connection greeter, driver; /* where hello and ATTACH came from */
    uint64_t received, finished, cancelled;
    struct { uint64_t request; uint8_t operation; double since; } busy; /* request 0: with nothing */
    char problem[WHY_BYTES];
    int stopping, over;
    uint64_t clients, requests, errors, repeated, damaged, foreign, expired_leases, safe_states, steps;

    /* Of the thread that drives the device: */
    declaration d;
    uint64_t attached, expected; /* the session that it is open for, and the number of its next request */
    int sums; /* whether payloads of the request at hand and its reply have checksums */
    int opened, ready, lost; /* not in its safe state; ATTACH went well; the state is not known */
    uint64_t step;
    uint32_t batch, done; /* `done` steps of the RUN at hand have states in `outputs` */
    int check_inputs;
    uint8_t *inputs, *outputs, *kept, *given; /* two frames, and two states of the largest batch */
    char why[WHY_BYTES];
};

/* Writes why into s->why; returns the code. */
int refuse(session *s, int code, const char *format, ...);
/* A line for the log. */
void say(const session *s, const char *format, ...);
/* Makes a text that others may print: no control characters, and UTF-8. */
void clean(char *text);
const char *name_of(int operation);

/* With the guard held: something of session `number` came at this time; whether it holds the device. */
int heard(session *s, uint64_t number, double at);

void remember(connection *c, bytes peer);
int is_from(const connection *c, bytes peer);

/* ATTACH's answer. */
void declare(writer *w, const declaration *d);
/* NULL, or what is wrong with a declaration. */
const char *nonsense_in(const declaration *d, size_t max_frame_bytes);
/* Whether requests that fit one fit the other. */
int has_sizes_of(const declaration *a, const declaration *b);
/* Whether a number of the inputs' dtype can be one that the device does not take. */
int must_check_inputs(const declaration *d);

#endif
