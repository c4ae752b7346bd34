/* Who has the device, which requests count, and what each of them does: docs/protocol.md. */
#include "session.h"

#include <float.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NONCE_BYTES 16
#define HOLDER_BYTES 240
#define PEER_BYTES 256
/* Of an error without its states. */
#define ERROR_BYTES 1024

struct session {
    terms t;
    char device[WHY_BYTES]; /* its name, for people */
    double started;

    pthread_mutex_t guard; /* of all up to the next comment */
    uint64_t number;       /* the session that has the device, 0: none */
    uint8_t nonce[NONCE_BYTES];
    char holder[HOLDER_BYTES];
    double heard;
    uint64_t received, finished, cancelled;
    struct { uint64_t request; uint8_t operation; double since; } busy; /* request 0: with nothing */
    char problem[WHY_BYTES];
    int stopping, over;
    double now; /* of the control message at hand */
    uint64_t clients, requests, errors, repeated, damaged, foreign, expired_leases, safe_states, steps;

    /* Of the thread that drives the device: */
    declaration d;
    uint64_t attached, expected; /* the session that it is open for, and the number of its next request */
    uint8_t peer[PEER_BYTES];
    size_t peer_size;
    int opened, at_rest, lost;
    uint64_t step;
    uint32_t batch, done; /* `done` steps of the RUN at hand have states in `outputs` */
    int check_inputs;
    uint8_t *inputs, *outputs, *kept, *given; /* two frames, and two states of the largest batch */
    char why[WHY_BYTES];
};

static const char *name_of(int operation)
{
    static const char *const names[] = {"?",       "ATTACH",     "RESET",  "RUN",    "SNAPSHOT",
                                        "RESTORE", "TRANSITION", "UPLOAD", "READOUT"};
    return names[operation >= OP_ATTACH && operation <= OP_READOUT ? operation : 0];
}

/* Makes a text that others may print: no control characters, and UTF-8. */
static void clean(char *text)
{
    int utf8 = text_is_utf8((bytes){(const uint8_t *)text, strlen(text)});
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7F || (c >= 0x80 && !utf8))
            *text = '?';
    }
}

static int refuse(session *s, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->why, sizeof s->why, format, arguments);
    va_end(arguments);
    return code;
}

static void say(const session *s, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    if (!s->t.log)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    s->t.log(line);
}

/* ---- the lease: with the guard held ---------------------------------------------------------------------------- */

static int heard(session *s, uint64_t number, double at)
{
    if (!number || number != s->number)
        return 0;
    if (at > s->heard)
        s->heard = at;
    return 1;
}

/* A busy device finishes what it does first. */
static void expire(session *s, double now)
{
    if (!s->number || s->busy.request || now - s->heard <= s->t.lease_s)
        return;
    say(s, "%s is not heard of any more: its session has ended", s->holder);
    s->number = 0;
    s->expired_leases++;
}

static int random_bytes(uint8_t *data, size_t size)
{
    FILE *source = fopen("/dev/urandom", "rb");
    size_t got = source ? fread(data, 1, size, source) : 0;
    if (source)
        fclose(source);
    return got == size;
}

/* A session below 2^53 that nobody can guess, for the client that is named in `client`. */
static void grant(session *s, bytes client, bytes nonce)
{
    uint8_t draw[8];
    size_t size = client.size < 200 ? client.size : 200;
    char since[16];
    time_t now = time(NULL);
    struct tm local;
    if (!random_bytes(draw, sizeof draw))
        return;
    while (size && size < client.size && client.data[size] >> 6 == 2)
        size--;
    strftime(since, sizeof since, "%H:%M:%S", localtime_r(&now, &local));
    snprintf(s->holder, sizeof s->holder, "%.*s since %s", (int)size, (const char *)client.data, since);
    clean(s->holder);
    memcpy(s->nonce, nonce.data, NONCE_BYTES);
    s->number = get_number(draw, 8) >> 11 | 1;
    s->received = s->finished = s->cancelled = 0;
    s->clients++;
    say(s, "%s has the device", s->holder);
}

/* ---- control --------------------------------------------------------------------------------------------------- */

static int has(bytes map, const char *name, mp_type type, mp_value *v)
{
    bytes raw;
    return mp_find(map, name, &raw, v) && v->type == type;
}

/* An integer; a negative one is 0, which is no session and no request. */
static int has_number(bytes map, const char *name, uint64_t *number)
{
    mp_value v;
    if (!has(map, name, MP_INT, &v))
        return 0;
    *number = v.negative ? 0 : v.number;
    return 1;
}

static void answer_begin(writer *w, const char *op, bytes id, size_t fields)
{
    w->size = 0;
    control_begin(w);
    write_map(w, 2 + fields);
    write_text(w, "op");
    write_text(w, op);
    write_text(w, "id");
    write_raw(w, id.data, id.size);
}

static void write_entry(writer *w, const char *name, uint64_t number)
{
    write_text(w, name);
    write_int(w, number);
}

static void write_texts(writer *w, const char *name, const char *text)
{
    write_text(w, name);
    write_text(w, text);
}

/* 0, or the code of the error whose text is in `text`. */
static int hello(session *s, bytes map, bytes id, writer *w, char *text, size_t room)
{
    mp_value versions, client, nonce, version;
    bytes list;
    int known = 0;
    if (!mp_find(map, "versions", &list, &versions) || versions.type != MP_LIST || !has(map, "client", MP_TEXT, &client) ||
        !has(map, "nonce", MP_BIN, &nonce) || nonce.size != NONCE_BYTES) {
        snprintf(text, room, "hello needs versions (list), client (text) and nonce (16 bytes)");
        return E_MALFORMED;
    }
    mp_read(&list, &versions);
    for (size_t i = 0; i < versions.size; i++, mp_skip(&list)) {
        bytes one = list;
        mp_read(&one, &version);
        known |= version.type == MP_INT && version.number == PROTOCOL_VERSION;
    }
    if (!known) {
        snprintf(text, room, "this device speaks version %d of the protocol", PROTOCOL_VERSION);
        return E_VERSION;
    }
    if (s->stopping) {
        snprintf(text, room, "the server is shutting down");
        return E_SHUTTING_DOWN;
    }
    if (s->number && memcmp(s->nonce, nonce.data, NONCE_BYTES)) {
        snprintf(text, room, "%s is in use by %s", s->device, s->holder);
        return E_BUSY;
    }
    if (!s->number)
        grant(s, (bytes){client.data, client.size}, (bytes){nonce.data, nonce.size});
    if (!s->number) {
        snprintf(text, room, "this host gives no random numbers");
        return E_INTERNAL;
    }
    s->heard = s->now;
    answer_begin(w, "welcome", id, 7);
    write_entry(w, "version", PROTOCOL_VERSION);
    write_entry(w, "session", s->number);
    write_text(w, "lease_s");
    write_double(w, s->t.lease_s);
    write_entry(w, "credits", s->t.credits);
    write_entry(w, "max_frame_bytes", s->t.max_frame_bytes);
    write_texts(w, "server", "board_server");
    write_texts(w, "device", s->device);
    return 0;
}

static void pong(session *s, uint64_t number, bytes id, writer *w)
{
    int valid = heard(s, number, s->now);
    answer_begin(w, "pong", id, 4);
    write_text(w, "valid");
    write_bool(w, valid);
    write_entry(w, "received", valid ? s->received : 0);
    write_entry(w, "finished", valid ? s->finished : 0);
    write_text(w, "busy");
    if (!valid || !s->busy.request) {
        write_nil(w);
        return;
    }
    write_map(w, 3);
    write_entry(w, "request", s->busy.request);
    write_texts(w, "operation", name_of(s->busy.operation));
    write_text(w, "seconds");
    write_double(w, s->now - s->busy.since);
}

static void status(session *s, bytes id, writer *w)
{
    const struct { const char *name; uint64_t count; } counters[] = {
        {"steps", s->steps},     {"clients", s->clients},   {"requests", s->requests},
        {"errors", s->errors},   {"repeated", s->repeated}, {"damaged", s->damaged},
        {"foreign", s->foreign}, {"safe_states", s->safe_states}, {"expired_leases", s->expired_leases},
    };
    size_t count = sizeof counters / sizeof *counters;
    answer_begin(w, "status", id, 1);
    write_text(w, "status");
    write_map(w, 6);
    write_texts(w, "device", s->device);
    write_texts(w, "address", s->t.address);
    write_text(w, "holder");
    if (s->number)
        write_text(w, s->holder);
    else
        write_nil(w);
    write_text(w, "uptime_s");
    write_double(w, s->now - s->started);
    write_text(w, "problem");
    if (*s->problem)
        write_text(w, s->problem);
    else
        write_nil(w);
    write_text(w, "counters");
    write_map(w, count);
    for (size_t i = 0; i < count; i++)
        write_entry(w, counters[i].name, counters[i].count);
}

/* With the guard held: 0, or the code of the error whose text is in `text`. */
static int answer_to(session *s, const mp_value *op, bytes map, bytes id, writer *w, char *text, size_t room)
{
    char name[16] = "";
    uint64_t number = 0, request = 0;
    if (op->size < sizeof name)
        memcpy(name, op->data, op->size);
    int with_session = has_number(map, "session", &number);
    if (!strcmp(name, "hello"))
        return hello(s, map, id, w, text, room);
    if (!strcmp(name, "status")) {
        status(s, id, w);
        return 0;
    }
    if (!strcmp(name, "release")) {
        snprintf(text, room, "this device is not hanging");
        return E_CONFIGURATION;
    }
    if (!strcmp(name, "ping") && with_session) {
        pong(s, number, id, w);
        return 0;
    }
    int cancels = !strcmp(name, "cancel") && has_number(map, "request", &request);
    if (!with_session || !(cancels || !strcmp(name, "goodbye"))) {
        snprintf(text, room, "this is no control message, or its fields are missing");
        return E_MALFORMED;
    }
    if (!heard(s, number, s->now)) {
        snprintf(text, room, "this session does not hold the device");
        return E_NO_SESSION;
    }
    if (!cancels) {
        say(s, "%s says goodbye", s->holder);
        s->number = 0;
    } else if (request > s->cancelled) {
        s->cancelled = request;
    }
    answer_begin(w, "ok", id, 0);
    return 0;
}

size_t session_control(session *s, const bytes *frames, size_t count, double now, uint8_t answer[CONTROL_ROOM])
{
    writer w = {answer, 0, CONTROL_ROOM, 0};
    bytes map, id;
    mp_value op, v;
    char text[512];
    pthread_mutex_lock(&s->guard);
    s->now = now;
    if (count != 1 || !control_read(frames[0], &map) || !has(map, "op", MP_TEXT, &op) || !mp_find(map, "id", &id, &v) ||
        v.type != MP_INT) {
        s->damaged++;
        pthread_mutex_unlock(&s->guard);
        return 0;
    }
    int code = answer_to(s, &op, map, id, &w, text, sizeof text);
    if (code) {
        clean(text);
        answer_begin(&w, "error", id, 2);
        write_entry(&w, "code", (uint64_t)code);
        write_texts(&w, "text", text);
    }
    pthread_mutex_unlock(&s->guard);
    control_end(&w);
    return w.size;
}

/* ---- the declaration ------------------------------------------------------------------------------------------- */

static int is_integer(int dtype) { return dtype >= DTYPE_INT16; }

/* A range, or nil where both ends are the same. */
static void write_range(writer *w, const char *name, const double range[2])
{
    write_text(w, name);
    if (range[0] == range[1]) {
        write_nil(w);
        return;
    }
    write_list(w, 2);
    write_double(w, range[0]);
    write_double(w, range[1]);
}

static void write_truth(writer *w, const char *name, int value)
{
    write_text(w, name);
    write_bool(w, value);
}

static void write_seconds(writer *w, const char *name, double seconds)
{
    write_text(w, name);
    write_double(w, seconds);
}

static void write_encoding(writer *w, const char *name, int dtype, double scale)
{
    write_text(w, name);
    write_list(w, 2);
    write_int(w, (uint64_t)dtype);
    write_double(w, scale);
}

static void write_bits(writer *w, const char *name, int dtype)
{
    write_text(w, name);
    if (is_integer(dtype))
        write_int(w, 8 * dtype_bytes(dtype));
    else
        write_nil(w);
}

static int is_wide(int dtype) { return dtype == DTYPE_FLOAT64 || dtype == DTYPE_INT32; }

static void declare(writer *w, const declaration *d)
{
    const struct { const char *name, *text; } texts[] = {
        {"vendor", d->vendor},     {"model", d->model},     {"serial", d->serial},
        {"firmware", d->firmware}, {"content", d->content},
    };
    int wide = is_wide(d->input_dtype) || is_wide(d->state_dtype);
    write_map(w, 6);
    write_encoding(w, "inputs", d->input_dtype, d->input_scale);
    write_encoding(w, "states", d->state_dtype, d->state_scale);
    write_truth(w, "chunked", d->chunked);
    write_truth(w, "readout", 0);
    write_truth(w, "finite", is_integer(d->state_dtype));
    write_text(w, "spec");
    write_map(w, 18);
    write_text(w, "identity");
    write_map(w, 6);
    for (int i = 0; i < 5; i++)
        write_texts(w, texts[i].name, texts[i].text ? texts[i].text : "");
    write_truth(w, "simulated", d->simulated);
    write_entry(w, "inputs", d->inputs);
    write_entry(w, "nodes", d->nodes);
    write_texts(w, "dtype", wide ? "float64" : "float32");
    write_range(w, "input_range", d->input_range);
    write_range(w, "state_range", d->state_range);
    write_entry(w, "max_batch", d->max_batch);
    write_texts(w, "continuity", d->continuity);
    write_entry(w, "memory_steps", d->memory_steps);
    write_seconds(w, "step_period_s", d->step_period_s);
    write_seconds(w, "reset_time_s", d->reset_time_s);
    write_texts(w, "clock", "host");
    write_truth(w, "snapshot", d->state_bytes > 0);
    write_truth(w, "settable", d->settable);
    write_truth(w, "programmable", 0);
    write_truth(w, "deterministic", d->deterministic);
    write_bits(w, "input_bits", d->input_dtype);
    write_bits(w, "output_bits", d->state_dtype);
}

/* NULL, or what is wrong with a declaration. */
static const char *nonsense_in(const declaration *d, size_t max_frame_bytes)
{
    size_t in = dtype_bytes(d->input_dtype), out = dtype_bytes(d->state_dtype);
    if (!d->vendor || !d->model || !d->continuity)
        return "the device does not say its vendor, model or continuity";
    if (!d->inputs || !d->nodes || !d->max_batch)
        return "the device says 0 inputs, nodes or sequences";
    if (!in || !out || !(d->input_scale > 0 && d->input_scale <= DBL_MAX && d->state_scale > 0 && d->state_scale <= DBL_MAX))
        return "the device says no dtype or scale of its inputs or states";
    if ((!is_integer(d->input_dtype) && d->input_scale != 1) || (!is_integer(d->state_dtype) && d->state_scale != 1))
        return "the scale of floating point numbers is 1";
    if (d->settable && (d->state_bytes != d->nodes * out || d->input_dtype != d->state_dtype ||
                        d->input_scale != d->state_scale))
        return "a settable device has its states as its state, and inputs in the same dtype and scale";
    uint64_t row = (uint64_t)d->inputs * in + (uint64_t)d->nodes * out + d->state_bytes;
    if (row > (max_frame_bytes - ERROR_BYTES) / d->max_batch)
        return "one step of all sequences does not go into a frame";
    return NULL;
}

/* ---- what a request does: 0, or the code of an error, whose text is in s->why ------------------------------------ */

static int free_of_problems(session *s)
{
    char why[WHY_BYTES] = "";
    int code = device_close(why);
    clean(why);
    pthread_mutex_lock(&s->guard);
    if (code)
        snprintf(s->problem, sizeof s->problem, "the device could not be brought to its safe state: %.190s", why);
    else
        *s->problem = 0;
    s->safe_states += !code;
    pthread_mutex_unlock(&s->guard);
    say(s, "%s", code ? s->problem : "the device is in its safe state");
    s->opened = code != 0;
    return code;
}

/* Whether requests that fit one fit the other. */
static int has_sizes_of(const declaration *a, const declaration *b)
{
    return a->inputs == b->inputs && a->nodes == b->nodes && a->max_batch == b->max_batch &&
           a->input_dtype == b->input_dtype && a->state_dtype == b->state_dtype && a->state_bytes == b->state_bytes &&
           a->settable == b->settable;
}

static void release(session *s)
{
    s->attached = 0;
    s->at_rest = 0;
    if (s->opened)
        free_of_problems(s);
}

static int rest(session *s, uint32_t batch)
{
    int code = device_reset(batch, s->why);
    s->lost = code != 0;
    if (code)
        return code;
    s->step = 0;
    s->batch = batch;
    return 0;
}

static int attach(session *s, const header *h, writer *w)
{
    declaration d = {0};
    if (h->request != 1)
        return refuse(s, E_SEQUENCE, "ATTACH is the first request of a session, and no other");
    if (s->opened)
        return refuse(s, E_DEVICE_FAULT, "%s", s->problem);
    s->opened = 1;
    int code = device_open(&d, s->why);
    if (!code && !has_sizes_of(&d, &s->d))
        code = refuse(s, E_CONFIGURATION, "this is another device than when the server started: start it again");
    if (!code)
        code = rest(s, 1);
    if (code) {
        free_of_problems(s);
        return code;
    }
    s->at_rest = 1;
    s->d = d;
    declare(w, &s->d);
    return 0;
}

static int check_batch(session *s, uint32_t batch)
{
    if (!batch)
        return refuse(s, E_SHAPE, "batch must be at least 1");
    if (batch > s->d.max_batch)
        return refuse(s, E_TOO_LARGE, "batch is %lu, the device drives %lu sequences at once", (unsigned long)batch,
                      (unsigned long)s->d.max_batch);
    return 0;
}

static int reset(session *s, const header *h, header *answer)
{
    int code = check_batch(s, h->batch);
    answer->batch = h->batch;
    return code ? code : rest(s, h->batch);
}

static double value_of(const uint8_t *numbers, int dtype, double scale, size_t i)
{
    switch (dtype) {
    case DTYPE_FLOAT32: return ((const float *)(const void *)numbers)[i];
    case DTYPE_FLOAT64: return ((const double *)(const void *)numbers)[i];
    case DTYPE_INT16: return scale * ((const int16_t *)(const void *)numbers)[i];
    case DTYPE_INT32: return scale * ((const int32_t *)(const void *)numbers)[i];
    default: return scale * (int8_t)numbers[i];
    }
}

static int check_range(session *s, const uint8_t *numbers, size_t count)
{
    const declaration *d = &s->d;
    int any = d->input_range[0] == d->input_range[1];
    double low = any ? -DBL_MAX : d->input_range[0], high = any ? DBL_MAX : d->input_range[1];
    for (size_t i = 0; s->check_inputs && i < count; i++) {
        double value = value_of(numbers, d->input_dtype, d->input_scale, i);
        if (!(value >= low && value <= high))
            return refuse(s, E_INPUT_RANGE, "an input is %g: the device takes %g to %g", value, low, high);
    }
    return 0;
}

/* Fills `inputs` with an array payload (batch, steps, width), if it is as declared. */
static int take_array(session *s, const header *h, bytes payload, int dtype, double scale)
{
    if (h->dtype != dtype || h->scale != scale)
        return refuse(s, E_MALFORMED, "dtype %d with a scale of %g is not as declared", h->dtype, h->scale);
    uint64_t row = (uint64_t)h->width * dtype_bytes(dtype) * h->batch;
    if (payload.size / row != h->steps || payload.size % row)
        return refuse(s, E_MALFORMED, "a payload of %lu bytes is not (%lu, %lu, %lu)", (unsigned long)payload.size,
                      (unsigned long)h->batch, (unsigned long)h->steps, (unsigned long)h->width);
    memcpy(s->inputs, payload.data, payload.size);
    return 0;
}

/* The header of a reply with states. */
static void states_follow(const session *s, const header *h, header *answer)
{
    answer->batch = h->batch;
    answer->steps = h->steps;
    answer->width = s->d.nodes;
    answer->dtype = (uint8_t)s->d.state_dtype;
    answer->scale = s->d.state_scale;
}

static int run(session *s, const header *h, bytes payload, header *answer, writer *w)
{
    const declaration *d = &s->d;
    struct timespec time;
    if (s->lost)
        return refuse(s, E_STATE_LOST, "the state is lost since a failure: RESET first");
    if (h->step != s->step)
        return refuse(s, E_SEQUENCE, "this RUN begins with step %llu, the device is at %llu",
                      (unsigned long long)h->step, (unsigned long long)s->step);
    if (h->batch != s->batch || h->width != d->inputs || !h->steps)
        return refuse(s, E_SHAPE, "RUN takes (%lu, time, %lu) after the last RESET", (unsigned long)s->batch,
                      (unsigned long)d->inputs);
    if (h->flags & ~(FLAG_MORE | FLAG_OUTPUTS))
        return refuse(s, E_MALFORMED, "a RUN has no flags %#x", h->flags);
    if (h->flags & FLAG_OUTPUTS)
        return refuse(s, E_CONFIGURATION, "this device has no readout");
    if (h->flags & FLAG_MORE && !d->chunked)
        return refuse(s, E_NOT_SUPPORTED, "this device must have a whole run in one message");
    size_t row = (size_t)h->batch * d->nodes * dtype_bytes(d->state_dtype);
    if (h->steps > s->t.max_frame_bytes / row)
        return refuse(s, E_TOO_LARGE, "the states of %lu steps are more than the %lu bytes of a frame",
                      (unsigned long)h->steps, (unsigned long)s->t.max_frame_bytes);
    int code = take_array(s, h, payload, d->input_dtype, d->input_scale);
    if (!code)
        code = check_range(s, s->inputs, (size_t)h->batch * h->steps * h->width);
    if (code)
        return code;
    clock_gettime(CLOCK_REALTIME, &time);
    code = device_run(h->batch, h->steps, s->inputs, s->outputs, &s->done, s->why);
    if (s->done > h->steps || (!code && s->done < h->steps)) {
        s->done = 0;
        code = refuse(s, E_INTERNAL, "the device says that it completed another number of steps than it was given");
    }
    pthread_mutex_lock(&s->guard);
    s->steps += (uint64_t)s->done * h->batch;
    pthread_mutex_unlock(&s->guard);
    if (code) {
        s->lost = 1;
        return code;
    }
    s->step += h->steps;
    w->size = row * h->steps;
    states_follow(s, h, answer);
    answer->flags = h->flags;
    answer->step = h->step;
    answer->time_ns = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    answer->period_s = d->step_period_s;
    return 0;
}

/* Reads or sets the state. Where that fails, the state is not known any more. */
static int state(session *s, uint32_t batch, uint8_t *at, int set)
{
    int code = device_state(batch, at, set, s->why);
    s->lost |= code != 0;
    return code;
}

static int snapshot(session *s, writer *w)
{
    named_array array = {{(const uint8_t *)"state", 5}, "u1", 2, {s->batch, s->d.state_bytes}, {0}};
    if (s->lost)
        return refuse(s, E_STATE_LOST, "the state is lost since a failure: RESET first");
    int code = state(s, s->batch, s->kept, 0);
    array.data = (bytes){s->kept, s->batch * s->d.state_bytes};
    write_map(w, 1);
    named_write(w, &array);
    return code;
}

static int restore(session *s, const header *h, bytes payload, header *answer)
{
    named_array array;
    int fits = 0, rows = 1, code = check_batch(s, h->batch);
    if (code)
        return code;
    int64_t count = named_begin(&payload);
    if (count < 0 || h->step >> 63)
        return refuse(s, E_MALFORMED, "RESTORE takes named arrays, and a step below 2^63");
    for (int64_t i = 0; i < count; i++) {
        if (!named_read(&payload, &array))
            return refuse(s, E_MALFORMED, "an array of RESTORE is not [dtype, shape, bytes]");
        rows &= array.dimensions && array.shape[0] == h->batch;
        fits = array.name.size == 5 && !memcmp(array.name.data, "state", 5) && !strcmp(array.dtype, "u1") &&
               array.dimensions == 2 && array.shape[1] == s->d.state_bytes;
    }
    if (!rows)
        return refuse(s, E_SHAPE, "each array must have %lu rows, one for each sequence", (unsigned long)h->batch);
    if (!fits || count != 1)
        return refuse(s, E_CONFIGURATION, "this device takes one array state, bytes (batch, %lu)",
                      (unsigned long)s->d.state_bytes);
    memcpy(s->given, array.data.data, array.data.size);
    code = state(s, h->batch, s->given, 1);
    if (code)
        return code;
    s->batch = answer->batch = h->batch;
    s->step = answer->step = h->step;
    s->lost = 0;
    return 0;
}

/* One step from given states; what the device was at before comes back. */
static int transition(session *s, const header *h, bytes payload, header *answer, writer *w)
{
    const declaration *d = &s->d;
    size_t size = dtype_bytes(d->state_dtype), inputs = d->inputs * size, row = inputs + d->state_bytes;
    uint32_t done = 0;
    int code = check_batch(s, h->batch);
    if (code)
        return code;
    if (h->steps != 1 || h->width != d->inputs + d->nodes)
        return refuse(s, E_SHAPE, "TRANSITION takes (batch, 1, %lu)", (unsigned long)d->inputs + d->nodes);
    code = take_array(s, h, payload, d->state_dtype, d->state_scale);
    if (code)
        return code;
    for (uint32_t i = 0; i < h->batch; i++) {
        memcpy(s->given + i * d->state_bytes, s->inputs + i * row + inputs, d->state_bytes);
        memmove(s->inputs + i * inputs, s->inputs + i * row, inputs);
    }
    code = check_range(s, s->inputs, (size_t)h->batch * d->inputs);
    if (code)
        return code;
    code = state(s, s->batch, s->kept, 0);
    if (!code)
        code = state(s, h->batch, s->given, 1);
    if (!code)
        code = device_run(h->batch, 1, s->inputs, s->outputs, &done, s->why);
    if (!code)
        code = state(s, s->batch, s->kept, 1);
    s->lost |= code != 0;
    if (code)
        return code;
    w->size = h->batch * d->nodes * size;
    states_follow(s, h, answer);
    return 0;
}

enum { BATCH = 1, STEP = 2, FLAGS = 4, ARRAY = 8, PAYLOAD = 16 };

/* Fields of a request that an operation names; all others are 0, and the scale is 1. */
static int check_fields(session *s, const header *h, bytes payload)
{
    static const uint8_t fields[] = {
        [OP_ATTACH] = 0, [OP_RESET] = BATCH, [OP_RUN] = BATCH | STEP | FLAGS | ARRAY | PAYLOAD, [OP_SNAPSHOT] = 0,
        [OP_RESTORE] = BATCH | STEP | PAYLOAD, [OP_TRANSITION] = BATCH | ARRAY | PAYLOAD};
    int named = fields[h->operation];
    int odd = (!(named & BATCH) && h->batch) || (!(named & STEP) && h->step) || (!(named & FLAGS) && h->flags) ||
              (!(named & ARRAY) && (h->steps || h->width || h->dtype || h->scale != 1)) || h->time_ns || h->period_s != 0;
    if (odd || (!(named & PAYLOAD) && payload.size))
        return refuse(s, E_MALFORMED, "%s has a field or a payload that it does not name", name_of(h->operation));
    return 0;
}

static int is_offered(const session *s, int operation)
{
    switch (operation) {
    case OP_ATTACH: case OP_RESET: case OP_RUN: return 1;
    case OP_SNAPSHOT: case OP_RESTORE: return s->d.state_bytes > 0;
    case OP_TRANSITION: return s->d.settable;
    default: return 0;
    }
}

static int attend(session *s, const header *h, bytes payload, header *answer, writer *w)
{
    if (!is_offered(s, h->operation))
        return refuse(s, E_NOT_SUPPORTED, "operation %#x is not offered by this device", h->operation);
    int code = check_fields(s, h, payload);
    if (code)
        return code;
    if (h->operation != OP_ATTACH && !s->at_rest)
        return refuse(s, E_SEQUENCE, "ATTACH is the first request of a session; here it failed or is missing");
    switch (h->operation) {
    case OP_ATTACH: return attach(s, h, w);
    case OP_RESET: return reset(s, h, answer);
    case OP_RUN: return run(s, h, payload, answer, w);
    case OP_SNAPSHOT: return snapshot(s, w);
    case OP_RESTORE: return restore(s, h, payload, answer);
    default: return transition(s, h, payload, answer, w);
    }
}

/* ---- the data socket ------------------------------------------------------------------------------------------- */

static void finish_reply(reply *out, header *answer, writer *w)
{
    out->payload = (bytes){w->data, w->size};
    out->session = answer->session;
    out->request = answer->request;
    answer->payload_crc = crc32c(w->data, w->size);
    header_write(out->header, answer);
}

/* The states of the first steps that were completed, side by side: as many as go into a frame. */
static bytes harvest(session *s, const header *h)
{
    size_t row = s->d.nodes * dtype_bytes(s->d.state_dtype), room = (s->t.max_frame_bytes - ERROR_BYTES) / (row * h->batch);
    if (s->done > room)
        s->done = (uint32_t)room;
    for (uint32_t i = 1; i < h->batch; i++)
        memmove(s->outputs + i * s->done * row, s->outputs + (size_t)i * h->steps * row, s->done * row);
    return (bytes){s->outputs, h->batch * s->done * row};
}

static void fail(session *s, const header *h, int code, reply *out)
{
    header answer = {.operation = OP_ERROR, .session = h->session, .request = h->request, .step = h->step, .scale = 1};
    writer w = {s->inputs, 0, s->t.max_frame_bytes, 0};
    uint64_t step = s->step + s->done;
    bytes states = s->done ? harvest(s, h) : (bytes){NULL, 0};
    clean(s->why);
    pthread_mutex_lock(&s->guard);
    s->errors++;
    pthread_mutex_unlock(&s->guard);
    write_map(&w, 6);
    write_entry(&w, "code", (uint64_t)code);
    write_texts(&w, "text", s->why);
    write_entry(&w, "step", step);
    write_truth(&w, "state_lost", s->lost);
    write_entry(&w, "steps_done", s->done);
    write_text(&w, "states");
    if (s->done)
        write_bin(&w, states);
    else
        write_nil(&w);
    finish_reply(out, &answer, &w);
}

/* Errors after which the state is as it was before. */
static int is_harmless(int code)
{
    return code == E_SHAPE || code == E_INPUT_RANGE || code == E_TOO_LARGE || code == E_NOT_SUPPORTED ||
           code == E_CONFIGURATION || code == E_CALIBRATION;
}

int session_data(session *s, bytes peer, const bytes *frames, size_t count, double now, double arrived, reply *out)
{
    header h = {.scale = 1};
    const char *damage = count == 2 ? header_read(frames[0], &h) : "a data message has 2 frames";
    s->done = 0;
    *s->why = 0;
    pthread_mutex_lock(&s->guard);
    expire(s, now);
    int holds = !damage && heard(s, h.session, arrived);
    int attaches = h.operation == OP_ATTACH && h.session != s->attached;
    int same = h.session == s->attached && peer.size == s->peer_size && !memcmp(peer.data, s->peer, peer.size);
    int foreign = !damage && !(holds && (attaches || same));
    s->damaged += damage != NULL;
    s->foreign += foreign;
    pthread_mutex_unlock(&s->guard);
    if (damage) {
        h = (header){.scale = 1};
        fail(s, &h, refuse(s, E_MALFORMED, "%s", damage), out);
        out->session = 0;
        return 1;
    }
    if (foreign) {
        fail(s, &h, refuse(s, E_NO_SESSION, "this session does not hold the device (any more); open it again"), out);
        out->session = 0;
        return 1;
    }
    if (attaches) {
        release(s);
        s->attached = h.session;
        s->expected = 1;
        s->lost = 0;
        s->step = 0;
        s->peer_size = peer.size < PEER_BYTES ? peer.size : PEER_BYTES;
        memcpy(s->peer, peer.data, s->peer_size);
    }
    pthread_mutex_lock(&s->guard);
    int copy = h.request < s->expected;
    s->repeated += (uint64_t)copy;
    s->requests += !copy;
    if (!copy) {
        s->received = h.request;
        s->busy.request = h.request;
        s->busy.operation = h.operation;
        s->busy.since = now;
    }
    int cancelled = h.request <= s->cancelled, stopping = s->stopping;
    pthread_mutex_unlock(&s->guard);
    if (copy)
        return 0;
    uint64_t missing = h.request - s->expected;
    s->expected = h.request + 1;

    header answer = {.operation = h.operation | OP_REPLY, .session = h.session, .request = h.request, .scale = 1};
    writer w = {s->outputs, 0, s->t.max_frame_bytes, 0};
    int code;
    if (missing)
        code = refuse(s, E_SEQUENCE, "%llu requests before this one were lost", (unsigned long long)missing);
    else if (crc32c(frames[1].data, frames[1].size) != h.payload_crc)
        code = refuse(s, E_CHECKSUM, "the payload was damaged on its way (its checksum is wrong)");
    else if (cancelled)
        code = refuse(s, E_CANCELLED, "cancelled by the client");
    else if (stopping)
        code = refuse(s, E_SHUTTING_DOWN, "the server is shutting down");
    else
        code = attend(s, &h, frames[1], &answer, &w);
    if (code) {
        s->lost |= !is_harmless(code) || (h.operation == OP_RUN && h.flags & FLAG_MORE);
        fail(s, &h, code, out);
        say(s, "request %llu (%s): error %d, %s", (unsigned long long)h.request, name_of(h.operation), code, s->why);
    } else {
        finish_reply(out, &answer, &w);
    }
    return 1;
}

void session_sent(session *s, const reply *out, int delivered)
{
    if (!out->session)
        return;
    pthread_mutex_lock(&s->guard);
    s->busy.request = 0;
    if (out->session == s->number) {
        s->finished = out->request;
        if (!delivered)
            s->number = 0;
    }
    pthread_mutex_unlock(&s->guard);
    if (!delivered)
        say(s, "the client is not connected any more: its session has ended");
}

void session_look(session *s, double now)
{
    pthread_mutex_lock(&s->guard);
    expire(s, now);
    if (s->stopping)
        s->number = 0;
    int left = s->attached && s->attached != s->number;
    pthread_mutex_unlock(&s->guard);
    if (left)
        release(s);
    pthread_mutex_lock(&s->guard);
    s->over = s->stopping;
    pthread_mutex_unlock(&s->guard);
}

void session_stop(session *s)
{
    pthread_mutex_lock(&s->guard);
    s->stopping = 1;
    pthread_mutex_unlock(&s->guard);
}

int session_is_over(session *s)
{
    pthread_mutex_lock(&s->guard);
    int over = s->over;
    pthread_mutex_unlock(&s->guard);
    return over;
}

/* Whether a number of the inputs' dtype can be one that the device does not take. */
static int must_check_inputs(const declaration *d)
{
    double largest = d->input_dtype == DTYPE_INT8 ? 127 : d->input_dtype == DTYPE_INT16 ? 32767 : 2147483647;
    return !is_integer(d->input_dtype) ||
           (d->input_range[0] != d->input_range[1] &&
            (d->input_range[0] > -(largest + 1) * d->input_scale || d->input_range[1] < largest * d->input_scale));
}

session *session_new(const terms *t, double now, char why[WHY_BYTES])
{
    char closing[WHY_BYTES] = "";
    session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    crc32c_begin();
    s->t = *t;
    s->started = now;
    int code = device_open(&s->d, why);
    const char *nonsense = code ? NULL : nonsense_in(&s->d, t->max_frame_bytes);
    if (nonsense)
        code = refuse(s, E_CONFIGURATION, "%s", nonsense);
    if (nonsense)
        memcpy(why, s->why, WHY_BYTES);
    int unsafe = device_close(closing);
    if (unsafe && !code)
        memcpy(why, closing, WHY_BYTES);
    if (code || unsafe) {
        free(s);
        return NULL;
    }
    size_t states = s->d.max_batch * (s->d.state_bytes + 1);
    s->inputs = malloc(t->max_frame_bytes);
    s->outputs = malloc(t->max_frame_bytes);
    s->kept = malloc(states);
    s->given = malloc(states);
    if (!s->inputs || !s->outputs || !s->kept || !s->given) {
        snprintf(why, WHY_BYTES, "no memory for two frames of %lu bytes", (unsigned long)t->max_frame_bytes);
        session_free(s, closing);
        return NULL;
    }
    s->check_inputs = must_check_inputs(&s->d);
    snprintf(s->device, sizeof s->device, "%s %s%s%s", s->d.vendor, s->d.model, s->d.serial ? " " : "",
             s->d.serial ? s->d.serial : "");
    clean(s->device);
    pthread_mutex_init(&s->guard, NULL);
    return s;
}

int session_free(session *s, char why[WHY_BYTES])
{
    release(s);
    int unsafe = s->opened;
    if (unsafe)
        snprintf(why, WHY_BYTES, "%s", s->problem);
    pthread_mutex_destroy(&s->guard);
    free(s->inputs);
    free(s->outputs);
    free(s->kept);
    free(s->given);
    free(s);
    return unsafe;
}
