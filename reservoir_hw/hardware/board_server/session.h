/* The device's side of docs/protocol.md without its sockets: messages in, messages out.
 *
 * `session_control` may be called by one thread, and the others by another one that drives the device, `session_gone`
 * by both. Times are seconds of a clock that never goes back.
 */
#ifndef SESSION_H
#define SESSION_H

#include "codec.h"
#include "device.h"

#define CONTROL_ROOM 4096

typedef struct {
    const char *address; /* for people */
    double lease_s;
    uint32_t credits;
    size_t max_frame_bytes;
    int offers_rings;              /* over Unix sockets: payloads in shared memory, and without checksums */
    void (*log)(const char *line); /* what people should know; NULL: nobody reads it */
} terms;

/* What came from a connection: a frame on the control socket, a header and a payload on the data socket, none of them
 * larger than it may be. */
typedef struct {
    bytes peer;
    bytes frames[2];
    const char *damage; /* NULL, or why this is no message */
    int lacking;        /* 0, or the code of the error that its payload cannot be had: `why` says more */
    const char *why;
    int waited;         /* whether it was there already when somebody looked */
    double arrived;     /* the earliest time at which it can have come */
} message;

typedef struct {
    uint8_t header[HEADER_BYTES];
    bytes payload;
    uint64_t session, request; /* 0: it answers nothing that counts */
    int is_error;
} reply;

typedef struct session session;

/* Learns what the device is. NULL if that fails, or the device declares nonsense: `why` says what. */
session *session_new(const terms *t, double now, char why[WHY_BYTES]);

/* The answer to a message on the control socket, and its size. 0: it is dropped. */
size_t session_control(session *s, const message *m, double now, uint8_t answer[CONTROL_ROOM]);

/* Does what a message on the data socket asks for. Whether there is a reply; it holds until the next call. */
int session_data(session *s, const message *m, double now, reply *out);

/* The reply was sent, or its client is not connected any more. */
void session_sent(session *s, const reply *out, int delivered);

/* A connection has ended, and with it the session that began there. */
void session_gone(session *s, bytes peer);

/* Takes the device from a client that has left, or from any after `session_stop`. To be called between requests. */
void session_look(session *s, double now);

/* Whether this session holds the device, and the size of a slot of the ring that it has agreed on (0: none). */
int session_holds(session *s, uint64_t number);
uint64_t session_slot_bytes(session *s, uint64_t number);

/* Where a payload may be copied to before `session_data`: `max_frame_bytes` bytes. */
uint8_t *session_room(session *s);

/* From now on all requests are refused: the server is about to end. It is over when the device is in its safe state. */
void session_stop(session *s);
int session_is_over(session *s);

/* The safe state, and the end. What is wrong with the device then, or 0. */
int session_free(session *s, char why[WHY_BYTES]);

#endif
