/* Random and damaged frames into session.c: fuzz COUNT SEED [FILE...]
 *
 * Files are frames to begin with, beside those that are written here. Most frames get their checksums and the session
 * mended after something was changed in them, so that they come far. Every now and then a client who does all right
 * must get the device, and the same states as ever.
 */
#include <stdio.h>
#include <stdlib.h>

#include "session.h"

#define ROOM 8192
#define MOST_FRAMES 512

static const terms TERMS = {"in process", 1.0, 4, ROOM, 1, NULL};
static struct { uint8_t data[ROOM]; size_t size; } corpus[MOST_FRAMES];
static size_t frames;
static uint64_t word;
static uint64_t answered;
static const bytes RIGHT = {(const uint8_t *)"right", 5}, ODD = {(const uint8_t *)"odd", 3};

/* xorshift64 (Marsaglia 2003): 0 to below - 1. */
static uint32_t draw(uint32_t below)
{
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    return (uint32_t)((word >> 32) % below);
}

static void add(const uint8_t *data, size_t size)
{
    if (frames < MOST_FRAMES && size <= ROOM) {
        memcpy(corpus[frames].data, data, size);
        corpus[frames++].size = size;
    }
}

static void die(const char *what)
{
    fprintf(stderr, "fuzz: %s after %llu answers\n", what, (unsigned long long)answered);
    exit(1);
}

/* ---- a client who does all right -------------------------------------------------------------------------------- */

static size_t control_message(uint8_t *frame, const char *op, uint64_t session)
{
    writer w = {frame, 0, ROOM, 0};
    control_begin(&w);
    write_map(&w, 9);
    entry_text(&w, "op", op);
    entry_int(&w, "id", 7);
    write_text(&w, "versions");
    write_list(&w, 1);
    write_int(&w, 1);
    entry_text(&w, "client", "fuzz");
    write_text(&w, "nonce");
    write_bin(&w, (bytes){(const uint8_t *)"0123456789abcdef", 16});
    entry_int(&w, "session", session);
    entry_int(&w, "request", 3);
    entry_bool(&w, "checksums", (int)draw(2));
    entry_int(&w, "slot_bytes", 4096);
    control_end(&w);
    return w.size;
}

/* A new session, in the place of `before`. */
static uint64_t session_of(session *s, uint64_t before, double now)
{
    uint8_t frame[ROOM], answer[CONTROL_ROOM];
    message question = {.peer = RIGHT, .frames = {{frame, control_message(frame, "goodbye", before)}}};
    bytes map, raw;
    mp_value v;
    session_control(s, &question, now, answer);
    session_look(s, now);
    question.frames[0].size = control_message(frame, "hello", 0);
    size_t size = session_control(s, &question, now, answer);
    if (!size || !control_read((bytes){answer, size}, &map) || !mp_find(map, "session", &raw, &v))
        return 0;
    return v.number;
}

static size_t request_message(uint8_t *frame, header h, bytes payload)
{
    h.scale = h.dtype ? h.scale : 1;
    h.payload_crc = crc32c(payload.data, payload.size);
    header_write(frame, &h);
    memmove(frame + HEADER_BYTES, payload.data, payload.size);
    return HEADER_BYTES + payload.size;
}

static const reply *ask(session *s, header h, bytes payload, double now)
{
    static reply out;
    static uint8_t frame[ROOM];
    request_message(frame, h, payload);
    message request = {.peer = RIGHT, .frames = {{frame, HEADER_BYTES}, {frame + HEADER_BYTES, payload.size}}, .arrived = now};
    if (!session_data(s, &request, now, &out))
        die("a right request was dropped");
    session_sent(s, &out, 1);
    if (out.header[5] != (h.operation | OP_REPLY))
        die("a right request was refused");
    return &out;
}

/* The checksum of its states. */
static uint32_t right_client(session *s, const declaration *d, double now)
{
    uint8_t inputs[ROOM] = {0};
    uint64_t number = session_of(s, 0, now);
    header run = {.operation = OP_RUN, .session = number, .request = 3, .batch = 1, .steps = 3, .width = d->inputs,
                  .dtype = (uint8_t)d->input_dtype, .scale = d->input_scale};
    if (!number)
        die("a right client was not let in");
    memset(inputs, 0x11, 3 * d->inputs * dtype_bytes(d->input_dtype));
    ask(s, (header){.operation = OP_ATTACH, .session = number, .request = 1}, (bytes){inputs, 0}, now);
    ask(s, (header){.operation = OP_RESET, .session = number, .request = 2, .batch = 1}, (bytes){inputs, 0}, now);
    const reply *states = ask(s, run, (bytes){inputs, 3 * d->inputs * dtype_bytes(d->input_dtype)}, now);
    return crc32c(states->payload.data, states->payload.size);
}

/* ---- frames that were changed ----------------------------------------------------------------------------------- */

/* Frames of every operation to begin with; questions are asked anew each time. */
static void begin(const declaration *d)
{
    uint8_t frame[ROOM], content[ROOM / 2] = {0};
    size_t in = d->inputs * dtype_bytes(d->input_dtype), out = d->nodes * dtype_bytes(d->state_dtype);
    header run = {.operation = OP_RUN, .batch = 1, .steps = 2, .width = d->inputs, .dtype = (uint8_t)d->input_dtype,
                  .scale = d->input_scale};
    header from = {.operation = OP_TRANSITION, .batch = 2, .steps = 1, .width = d->inputs + d->nodes,
                   .dtype = (uint8_t)d->state_dtype, .scale = d->state_scale};
    named_array array = {{(const uint8_t *)"state", 5}, "u1", 2, {1, d->state_bytes}, {content, d->state_bytes}};
    writer named = {content + d->state_bytes, 0, ROOM / 4, 0};
    add(frame, control_message(frame, "hello", 0));
    write_map(&named, 1);
    named_write(&named, &array);
    add(frame, request_message(frame, run, (bytes){content, 2 * in}));
    add(frame, request_message(frame, from, (bytes){content, 2 * (in + out)}));
    add(frame, request_message(frame, (header){.operation = OP_RESTORE, .batch = 1}, (bytes){named.data, named.size}));
    for (uint8_t operation = OP_ATTACH; operation <= OP_READOUT; operation++)
        add(frame, request_message(frame, (header){.operation = operation, .batch = 1}, (bytes){content, 0}));
}

static size_t damage(uint8_t *frame, size_t size)
{
    static const uint8_t odd[] = {0, 1, 2, 0x7F, 0x80, 0x81, 0x8F, 0x9F, 0xC0, 0xC4, 0xC6, 0xCF, 0xDB, 0xDD, 0xDF, 0xFF};
    static const uint8_t fields[] = {5, 6, 24, 32, 36, 40, 44, 48, 56, 64};
    for (uint32_t times = draw(4); times && size; times--) {
        size_t at = draw((uint32_t)size), length = draw(9) < size - at ? draw(9) : size - at;
        switch (draw(7)) {
        case 0: frame[at] ^= (uint8_t)(1u << draw(8)); break;
        case 1: frame[at] = (uint8_t)draw(256); break;
        case 2: frame[at] = odd[draw(sizeof odd)]; break;
        case 3: size = at; break;
        case 5:
            if (size >= HEADER_BYTES)
                put_number(frame + fields[draw(sizeof fields)], draw(4) ? 1 : 4, draw(5));
            break;
        case 4:
            if (length > size - at)
                length = size - at;
            memmove(frame + at, frame + at + length, size - at - length);
            size -= length;
            break;
        default:
            if (size + length < ROOM) {
                memmove(frame + at + length, frame + at, size - at);
                size += length;
            }
        }
    }
    return size;
}

/* Gives a frame what its checksums, its session, its request and mostly its step should be. */
static void mend(uint8_t *frame, size_t size, uint64_t session, uint64_t request, uint64_t step)
{
    if (size > CONTROL_HEADER_BYTES && frame[3] == 'C') {
        put_number(frame + 8, 4, crc32c(frame + CONTROL_HEADER_BYTES, size - CONTROL_HEADER_BYTES));
    } else if (size >= HEADER_BYTES && frame[3] == 'D') {
        put_number(frame + 8, 8, session);
        if (draw(16))
            put_number(frame + 16, 8, request);
        if (draw(8) && frame[5] == OP_RUN)
            put_number(frame + 24, 8, step);
        if (draw(8))
            put_number(frame + 72, 4, crc32c(frame + HEADER_BYTES, size - HEADER_BYTES));
        put_number(frame + 76, 4, crc32c(frame, HEADER_BYTES - 4));
    }
}

/* Memory of exactly this size: whoever reads beyond it is found out. */
static bytes copy_of(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        die("no memory");
    memcpy(copy, data, size);
    return (bytes){copy, size};
}

int main(int count, char **arguments)
{
    static uint8_t frame[ROOM], answer[CONTROL_ROOM];
    char why[WHY_BYTES] = "";
    declaration d = {0};
    double now = 0;
    static const char *const questions[] = {"hello", "ping", "status", "cancel", "goodbye", "release"};
    uint8_t next = OP_ATTACH; /* what brings the session on, if it is asked rightly */
    uint64_t number = 0, request = 1, step = 0, wanted = count > 1 ? strtoull(arguments[1], NULL, 10) : 10000;
    word = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    crc32c_begin();
    if (device_open(&d, why) || device_close(why))
        die(why);
    begin(&d);
    size_t own = frames;
    for (int i = 3; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        if (!file)
            die(arguments[i]);
        add(frame, fread(frame, 1, ROOM, file));
        fclose(file);
    }
    session *s = session_new(&TERMS, now, why);
    if (!s)
        die(why);
    uint32_t states = right_client(s, &d, now);
    for (uint64_t i = 0; i < wanted; i++) {
        size_t which = draw((uint32_t)(draw(2) ? own : frames)), size = corpus[which].size;
        memcpy(frame, corpus[which].data, size);
        if (!draw(10))
            size = control_message(frame, questions[draw(draw(10) ? 4 : 6)], number);
        if (!draw(3))
            size = request_message(frame, (header){.operation = next, .batch = next == OP_RESET}, (bytes){frame, 0});
        else
            size = damage(frame, size);
        if (draw(8))
            mend(frame, size, number, request, step);
        now += draw(1000) ? 1e-4 : 2;
        if (size > 3 && frame[3] == 'C') {
            message question = {.peer = ODD, .frames = {copy_of(frame, size)}, .damage = draw(50) ? NULL : "odd"};
            bytes map;
            size_t told = session_control(s, &question, now, answer);
            free((void *)question.frames[0].data);
            if (told && !control_read((bytes){answer, told}, &map))
                die("an answer is no control message");
            answered += told > 0;
        } else {
            size_t head = draw(20) && size > HEADER_BYTES ? HEADER_BYTES : size;
            message m = {.peer = ODD, .frames = {copy_of(frame, head), copy_of(frame + head, size - head)},
                               .damage = draw(50) ? NULL : "odd", .lacking = draw(50) ? 0 : (int)draw(21), .why = "odd",
                               .arrived = now};
            reply out;
            header h;
            int answers = session_data(s, &m, now, &out);
            free((void *)m.frames[0].data);
            free((void *)m.frames[1].data);
            if (answers) {
                if (header_read((bytes){out.header, HEADER_BYTES}, &h) || out.payload.size > ROOM ||
                    (h.payload_crc && h.payload_crc != crc32c(out.payload.data, out.payload.size)))
                    die("a reply is no data message");
                answered++;
                request = h.session == number && h.request ? h.request + 1 : request;
                if (h.operation != OP_ERROR)
                    next = OP_SNAPSHOT;
                else if (next != OP_ATTACH)
                    next = OP_RESET;
                step = h.operation == (OP_RUN | OP_REPLY) ? h.step + h.steps : h.operation == OP_ERROR ? step : h.step;
                session_sent(s, &out, draw(1000) > 0);
            }
        }
        if (!draw(500))
            session_gone(s, draw(2) ? ODD : RIGHT);
        session_look(s, now);
        if (!draw(100) || !i) {
            number = session_of(s, number, now);
            request = 1;
            step = 0;
            next = OP_ATTACH;
        }
        if (!draw(2000) || i + 1 == wanted) {
            now += 2 * TERMS.lease_s;
            session_look(s, now);
            if (right_client(s, &d, now) != states)
                die("other states than at first");
            now += 2 * TERMS.lease_s;
            session_look(s, now);
        }
    }
    if (session_free(s, why))
        die(why);
    printf("%llu frames, %llu answers\n", (unsigned long long)wanted, (unsigned long long)answered);
    return 0;
}
