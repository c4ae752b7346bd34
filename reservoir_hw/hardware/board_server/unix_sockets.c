/* Unix sockets with payloads in shared memory, for clients on the same host. They need Linux. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport.h"

#define LARGEST_PACKET 65536
#define FRONT_BYTES 16
#define PAYLOAD_AT (FRONT_BYTES + HEADER_BYTES)
/* Up to here a copy through the socket is quicker than a look into shared memory. */
#define INLINE_BYTES 4096
/* Clients besides the one that has the device only ask something, and go. */
#define MOST_CONNECTIONS 64
#define MOST_DESCRIPTORS 8

enum { INLINE, SLOT, SEGMENT };

typedef struct {
    int is_data, patience_ms;
    uint32_t credits;
    size_t max_frame_bytes;
    char path[sizeof ((struct sockaddr_un *)0)->sun_path];
    struct pollfd polled[1 + MOST_CONNECTIONS]; /* the listener, and the connections */
    uint8_t names[1 + MOST_CONNECTIONS][8];     /* of the connections: no two ever have the same */
    nfds_t count, last; /* the one that was heard last: the next one has its turn */
    uint64_t connections;

    uint8_t packet[LARGEST_PACKET], gone[8];
    int descriptors[MOST_DESCRIPTORS]; /* those of the last packet */
    size_t came;

    uint8_t *ring;
    size_t ring_bytes, slot_bytes;
    uint64_t ring_of; /* the session that it belongs to */
} listener;

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

static void drop_ring(listener *l)
{
    if (l->ring)
        munmap(l->ring, l->ring_bytes);
    l->ring = NULL;
    l->ring_of = 0;
}

static void drop_descriptors(listener *l)
{
    while (l->came)
        close(l->descriptors[--l->came]);
}

/* Maps what came with ATTACH. NULL, or why there is no ring. */
static const char *take_ring(listener *l, uint64_t session, uint64_t slot_bytes)
{
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
    size_t size = (size_t)(2 * slot_bytes * l->credits);
    struct stat found;
    drop_ring(l);
    if (!slot_bytes)
        return l->came ? "no ring was agreed on" : NULL;
    if (l->came != 1)
        return "ATTACH comes with the segment for the ring";
    int seals = fcntl(l->descriptors[0], F_GET_SEALS);
    if (seals < 0 || (seals & needed) != needed)
        return "the segment for the ring is no memfd, or lacks F_SEAL_SHRINK or F_SEAL_GROW";
    if (fstat(l->descriptors[0], &found) || (uint64_t)found.st_size != size)
        return "the segment for the ring has another size than 2 x credits x slot_bytes";
    void *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, l->descriptors[0], 0);
    if (ring == MAP_FAILED)
        return "the segment for the ring cannot be mapped";
    l->ring = ring;
    l->ring_bytes = size;
    l->slot_bytes = (size_t)slot_bytes;
    l->ring_of = session;
    return NULL;
}

static uint8_t *slot(const listener *l, uint64_t request, int is_reply)
{
    uint64_t i = (request - 1) % l->credits + (is_reply ? l->credits : 0);
    return l->ring + i * l->slot_bytes;
}

/* Whether a segment has so many bytes, which are then in `room`. */
static int read_segment(int descriptor, uint8_t *room, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = pread(descriptor, room + done, size - done, (off_t)done);
        if (got <= 0)
            return 0;
        done += (size_t)got;
    }
    return 1;
}

/* A segment with this payload, or -1. */
static int new_segment(bytes payload)
{
    int descriptor = memfd_create("board_server payload", MFD_CLOEXEC);
    for (size_t done = 0; descriptor >= 0 && done < payload.size;) {
        ssize_t wrote = write(descriptor, payload.data + done, payload.size - done);
        if (wrote > 0) {
            done += (size_t)wrote;
        } else {
            close(descriptor);
            return -1;
        }
    }
    return descriptor;
}

/* ---- packets ----------------------------------------------------------------------------------------------------- */

/* The payload of a request with a good header: a copy in `room`, or inline. */
static void take_payload(listener *l, const header *h, size_t size, int place, bytes rest, uint8_t *room, message *m)
{
    m->frames[1] = (bytes){room, size};
    m->lacking = E_MALFORMED;
    if (size > l->max_frame_bytes) {
        m->lacking = E_TOO_LARGE;
        m->why = "the payload is larger than max_frame_bytes";
    } else if (rest.size != (place == INLINE ? size : 0)) {
        m->why = "the packet has another length than it announces";
    } else if (place == SLOT && (!l->ring || size > l->slot_bytes)) {
        m->why = "there is no slot with so many bytes";
    } else if (place == SEGMENT && !read_segment(l->descriptors[0], room, size)) {
        m->why = "the segment of the payload ends too early";
    } else {
        m->lacking = 0;
        if (place == SLOT)
            memcpy(room, slot(l, h->request, 0), size);
        if (place == INLINE)
            m->frames[1] = rest;
    }
    if (m->lacking)
        m->frames[1].size = 0;
}

static void take_request(listener *l, session *s, bytes packet, message *m)
{
    const uint8_t *front = packet.data;
    header h;
    if (packet.size < PAYLOAD_AT || crc32c(front, 12) != get_number(front + 12, 4) || front[8] > SEGMENT ||
        get_number(front + 9, 3)) {
        m->damage = "the packet does not begin as the page says";
        return;
    }
    int place = front[8];
    m->frames[0] = (bytes){front + FRONT_BYTES, HEADER_BYTES};
    m->damage = header_read(m->frames[0], &h);
    if (m->damage)
        return;
    int attaches = h.operation == OP_ATTACH;
    if (l->came != (place == SEGMENT) && !(attaches && l->came == 1)) {
        m->damage = "the packet came with another number of descriptors than its place asks for";
        return;
    }
    take_payload(l, &h, (size_t)get_number(front, 8), place, (bytes){front + PAYLOAD_AT, packet.size - PAYLOAD_AT},
                 session_room(s), m);
    if (attaches && session_holds(s, h.session) && h.session != l->ring_of) {
        m->why = take_ring(l, h.session, session_slot_bytes(s, h.session));
        m->lacking = m->why ? E_CONFIGURATION : m->lacking;
    }
}

/* Reads a packet and its descriptors. Its size, 0 if the connection has ended, -1 if there is none. `cut`: not all came. */
static ssize_t read_packet(listener *l, int from, int *cut)
{
    union {
        char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
        struct cmsghdr aligned;
    } extra;
    struct iovec part = {l->packet, sizeof l->packet};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &extra, .msg_controllen = sizeof extra};
    ssize_t size = recvmsg(from, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0)
        return errno == EAGAIN || errno == EINTR ? -1 : 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&head); c; c = CMSG_NXTHDR(&head, c))
        if (c->cmsg_type == SCM_RIGHTS) {
            l->came = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(l->descriptors, CMSG_DATA(c), l->came * sizeof(int));
        }
    *cut = head.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    return size;
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static void welcome(listener *l)
{
    struct ucred who;
    socklen_t size = sizeof who;
    int from = accept4(l->polled[0].fd, NULL, NULL, SOCK_CLOEXEC);
    if (from < 0)
        return;
    if (getsockopt(from, SOL_SOCKET, SO_PEERCRED, &who, &size) || who.uid != geteuid() || l->count > MOST_CONNECTIONS) {
        close(from);
        return;
    }
    put_number(l->names[l->count], 8, ++l->connections << 1 | (uint64_t)l->is_data);
    l->polled[l->count++] = (struct pollfd){from, POLLIN, 0};
}

static void farewell(listener *l, nfds_t which)
{
    close(l->polled[which].fd);
    memcpy(l->gone, l->names[which], sizeof l->gone);
    l->count--;
    l->polled[which] = l->polled[l->count];
    memcpy(l->names[which], l->names[l->count], sizeof l->names[which]);
}

static enum came receive(void *socket, session *s, message *m)
{
    listener *l = socket;
    drop_descriptors(l);
    if (l->ring && !session_holds(s, l->ring_of))
        drop_ring(l);
    int ready = poll(l->polled, l->count, 0);
    *m = (message){.waited = ready > 0};
    if (!ready)
        ready = poll(l->polled, l->count, IDLE_MS);
    if (ready <= 0)
        return NOTHING;
    if (l->polled[0].revents)
        welcome(l);
    for (nfds_t i = 1; i < l->count; i++) {
        nfds_t which = 1 + (l->last + i - 1) % (l->count - 1);
        if (!l->polled[which].revents)
            continue;
        int cut = 0;
        ssize_t size = read_packet(l, l->polled[which].fd, &cut);
        if (size < 0)
            continue;
        l->last = which;
        m->peer = (bytes){l->names[which], sizeof l->names[which]};
        if (!size) {
            farewell(l, which);
            m->peer.data = l->gone;
            return GONE;
        }
        m->frames[0] = (bytes){l->packet, (size_t)size};
        if (cut)
            m->damage = "a packet has at most 65536 bytes";
        else if (l->is_data)
            take_request(l, s, m->frames[0], m);
        return MESSAGE;
    }
    return NOTHING;
}

/* Whether the connection is there; what it does not take in time is lost. */
static int send_packet(listener *l, bytes peer, struct iovec *parts, size_t count, int descriptor, int patience_ms)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } extra = {{0}};
    struct msghdr head = {.msg_iov = parts, .msg_iovlen = count};
    nfds_t which = 1;
    while (which < l->count && memcmp(l->names[which], peer.data, sizeof l->names[which]))
        which++;
    if (which == l->count)
        return 0;
    if (descriptor >= 0) {
        head.msg_control = &extra;
        head.msg_controllen = sizeof extra;
        *CMSG_FIRSTHDR(&head) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
                                                 .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&head)), &descriptor, sizeof descriptor);
    }
    for (;;) {
        struct pollfd room = {l->polled[which].fd, POLLOUT, 0};
        if (sendmsg(room.fd, &head, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 1;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return 0;
        if (patience_ms <= 0 || !poll(&room, 1, patience_ms))
            return 1;
    }
}

static void answer(void *socket, bytes peer, bytes frame)
{
    send_packet(socket, peer, &(struct iovec){(void *)frame.data, frame.size}, 1, -1, 0);
}

static int send_reply(void *socket, bytes peer, const reply *out)
{
    listener *l = socket;
    bytes payload = out->payload;
    uint8_t front[FRONT_BYTES] = {0};
    struct iovec parts[] = {{front, sizeof front}, {(void *)out->header, HEADER_BYTES}, {(void *)payload.data, payload.size}};
    int descriptor = -1;
    int has_slot = l->ring && out->session == l->ring_of && !out->is_error;
    if (payload.size > INLINE_BYTES && has_slot && payload.size <= l->slot_bytes) {
        front[8] = SLOT;
        memcpy(slot(l, out->request, 1), payload.data, payload.size);
    } else if (payload.size > LARGEST_PACKET - PAYLOAD_AT) {
        front[8] = SEGMENT;
        descriptor = new_segment(payload);
        if (descriptor < 0)
            return 0;
    }
    put_number(front, 8, payload.size);
    put_number(front + 12, 4, crc32c(front, 12));
    int there = send_packet(l, peer, parts, front[8] == INLINE ? 3 : 2, descriptor, out->session ? l->patience_ms : 0);
    if (descriptor >= 0)
        close(descriptor);
    return there;
}

static void hurry(void *socket) { ((listener *)socket)->patience_ms = 0; }

/* ---- where it listens -------------------------------------------------------------------------------------------- */

/* While nobody else looks whether this path is free: the file of a dead server is replaced. NULL, or why it does not listen. */
static const char *listen_at(listener *l)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat found;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", l->path);
    if (!lstat(l->path, &found)) {
        int probe = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        int dead = S_ISSOCK(found.st_mode) && connect(probe, (struct sockaddr *)&address, sizeof address) < 0 &&
                   errno == ECONNREFUSED;
        close(probe);
        if (!dead)
            return S_ISSOCK(found.st_mode) ? "another server listens there" : "something that is no socket is there";
        unlink(l->path);
    }
    if (bind(l->polled[0].fd, (struct sockaddr *)&address, sizeof address) || chmod(l->path, 0600) ||
        listen(l->polled[0].fd, MOST_CONNECTIONS))
        return strerror(errno);
    return NULL;
}

static listener *new_listener(const terms *t, const char *path, const char *behind, int is_data)
{
    listener *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->is_data = is_data;
    l->patience_ms = is_data ? (int)(1000 * t->lease_s) : 0;
    l->credits = t->credits;
    l->max_frame_bytes = t->max_frame_bytes;
    snprintf(l->path, sizeof l->path, "%s%s", path, behind);
    l->polled[0] = (struct pollfd){socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), POLLIN, 0};
    l->count = 1;
    return l;
}

static const char *open_both(const char *address, const terms *t, char bound[ADDRESS_BYTES], void **data, void **control)
{
    static char why[WHY_BYTES];
    const char *path = address + strlen("unix://");
    char folder[LONGEST_ADDRESS + 16];
    listener *d = new_listener(t, path, "", 1), *c = new_listener(t, path, ".control", 0);
    if (!d || !c)
        return "no memory";
    *data = d;
    *control = c;
    snprintf(folder, sizeof folder, "%s", strchr(path, '/') ? path : "./");
    *(strrchr(folder, '/') + 1) = 0;
    int turn = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (turn < 0 || flock(turn, LOCK_EX))
        return strerror(errno);
    const char *problem = listen_at(d);
    snprintf(why, sizeof why, "%s", problem ? problem : "");
    if (!problem && (problem = listen_at(c))) {
        unlink(d->path);
        snprintf(why, sizeof why, "its control socket %s: %s", c->path, problem);
    }
    close(turn);
    snprintf(bound, ADDRESS_BYTES, "%s", address);
    return problem ? why : NULL;
}

static void close_listener(void *socket)
{
    listener *l = socket;
    drop_descriptors(l);
    drop_ring(l);
    /* As long as somebody answers there, nobody takes the path. */
    unlink(l->path);
    while (l->count)
        close(l->polled[--l->count].fd);
    free(l);
}

const transport unix_sockets = {open_both, receive, answer, send_reply, hurry, close_listener};
