/* The device's side of docs/protocol.md without its sockets: frames in, frames out.
 *
 * `session_control` may be called by one thread, and the others by another one that drives the device. Times are
 * seconds of a clock that never goes back.
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
    void (*log)(const char *line); /* what people should know; NULL: nobody reads it */
} terms;

typedef struct {
    uint8_t header[HEADER_BYTES];
    bytes payload;
    uint64_t session, request; /* 0: it answers nothing that counts */
} reply;

typedef struct session session;

/* Learns what the device is. NULL if that fails, or the device declares nonsense: `why` says what. */
session *session_new(const terms *t, double now, char why[WHY_BYTES]);

/* The answer to a message on the control socket, and its size. 0: it is dropped. */
size_t session_control(session *s, const bytes *frames, size_t count, double now, uint8_t answer[CONTROL_ROOM]);

/* Does what a message on the data socket from connection `peer` asks for. Whether there is a reply; it holds until the
 * next call. `arrived` is the earliest time at which the message can have come. */
int session_data(session *s, bytes peer, const bytes *frames, size_t count, double now, double arrived, reply *out);

/* The reply was sent, or its client is not connected any more. */
void session_sent(session *s, const reply *out, int delivered);

/* Takes the device from a client that has left, or from any after `session_stop`. To be called between requests. */
void session_look(session *s, double now);

/* From now on all requests are refused: the server is about to end. It is over when the device is in its safe state. */
void session_stop(session *s);
int session_is_over(session *s);

/* The safe state, and the end. What is wrong with the device then, or 0. */
int session_free(session *s, char why[WHY_BYTES]);

#endif
