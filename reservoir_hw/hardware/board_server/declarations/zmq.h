/* What server.c uses of libzmq 4, for hosts that have the library (inside pyzmq, for instance) and not its header. The
 * names, numbers and types are those of the API, https://api.zeromq.org. */
#ifndef ZMQ_H
#define ZMQ_H

#include <stddef.h>
#include <errno.h>

typedef struct zmq_msg_t {
    union {
        unsigned char _[64];
        void *p;
    } _;
} zmq_msg_t;

enum { ZMQ_ROUTER = 6 };
enum {
    ZMQ_RCVMORE = 13, ZMQ_EVENTS = 15, ZMQ_LINGER = 17, ZMQ_MAXMSGSIZE = 22, ZMQ_SNDHWM = 23, ZMQ_RCVHWM = 24,
    ZMQ_RCVTIMEO = 27, ZMQ_SNDTIMEO = 28, ZMQ_LAST_ENDPOINT = 32, ZMQ_ROUTER_MANDATORY = 33, ZMQ_IPV6 = 42
};
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 };
enum { ZMQ_POLLIN = 1 };

void *zmq_ctx_new(void);
int zmq_ctx_term(void *context);
void *zmq_socket(void *context, int type);
int zmq_close(void *socket);
int zmq_setsockopt(void *socket, int option, const void *value, size_t size);
int zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int zmq_bind(void *socket, const char *address);
int zmq_unbind(void *socket, const char *address);
int zmq_send(void *socket, const void *data, size_t size, int flags);
int zmq_msg_init(zmq_msg_t *message);
int zmq_msg_recv(zmq_msg_t *message, void *socket, int flags);
int zmq_msg_close(zmq_msg_t *message);
int zmq_msg_more(const zmq_msg_t *message);
void *zmq_msg_data(zmq_msg_t *message);
size_t zmq_msg_size(const zmq_msg_t *message);
int zmq_errno(void);
const char *zmq_strerror(int number);

#ifndef EHOSTUNREACH
#define EHOSTUNREACH (156384712 + 17)
#endif

#endif
