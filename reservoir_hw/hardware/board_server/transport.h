/* How messages come and go: zmq_sockets.c, and unix_sockets.c for clients on the same host. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include "session.h"

#define ADDRESS_BYTES 160
#define LONGEST_ADDRESS 104
/* How long a socket waits for a message before somebody looks at the clock. */
#define IDLE_MS 50

enum came { NOTHING, MESSAGE, GONE };

typedef struct {
    /* Listens with a data and a control socket. NULL, or why not; `bound` is the address that clients connect to. */
    const char *(*open)(const char *address, const terms *t, char bound[ADDRESS_BYTES], void **data, void **control);
    /* The next message; of GONE only `peer` is of use. What it points to holds until the next call. */
    enum came (*receive)(void *socket, session *s, message *m);
    /* Sends the answer to a control message, if it can go out at once. */
    void (*answer)(void *socket, bytes peer, bytes frame);
    /* Sends a reply; whether its client is still connected. Only a client that has the device is waited for. */
    int (*reply)(void *socket, bytes peer, const reply *out);
    /* From now on nobody is waited for. */
    void (*hurry)(void *socket);
    void (*close)(void *socket);
} transport;

extern const transport zmq_sockets, unix_sockets;

#endif
