/* What each request does. Functions return 0, or the code of an error, whose text is in s->why. */
#include <float.h>
#include <stdio.h>
#include <time.h>

#include "operations.h"

/* Whether the device could not be brought to its safe state. */
static int close_device(session *s)
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

void release(session *s)
{
    s->attached = 0;
    s->ready = 0;
    if (s->opened)
        close_device(s);
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
        close_device(s);
        return code;
    }
    s->ready = 1;
    s->d = d;
    s->check_inputs = must_check_inputs(&d);
    declare(w, &d);
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
    if (payload.data != s->inputs)
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

int attend(session *s, const header *h, bytes payload, header *answer, writer *w)
{
    if (!is_offered(s, h->operation))
        return refuse(s, E_NOT_SUPPORTED, "operation %#x is not offered by this device", h->operation);
    int code = check_fields(s, h, payload);
    if (code)
        return code;
    if (h->operation != OP_ATTACH && !s->ready)
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
