/* Which requests count, and what is sent back; when a session ends. */
#include <stdio.h>
#include <stdlib.h>

#define CODEC_TABLES
#include "operations.h"

/* A busy device finishes what it does first. */
static void expire(session *s, double now)
{
    if (!s->number || s->busy.request || now - s->heard <= s->t.lease_s)
        return;
    say(s, "%s is not heard of any more: its session has ended", s->holder);
    s->number = 0;
    s->expired_leases++;
}

static void finish_reply(const session *s, reply *out, header *answer, writer *w)
{
    out->payload = (bytes){w->data, w->size};
    out->session = answer->session;
    out->request = answer->request;
    out->is_error = answer->operation == OP_ERROR;
    answer->payload_crc = s->sums ? crc32c(w->data, w->size) : 0;
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
    entry_int(&w, "code", (uint64_t)code);
    entry_text(&w, "text", s->why);
    entry_int(&w, "step", step);
    entry_bool(&w, "state_lost", s->lost);
    entry_int(&w, "steps_done", s->done);
    write_text(&w, "states");
    if (s->done)
        write_bin(&w, states);
    else
        write_nil(&w);
    finish_reply(s, out, &answer, &w);
}

/* Errors after which the state is as it was before. */
static int is_harmless(int code)
{
    return code == E_SHAPE || code == E_INPUT_RANGE || code == E_TOO_LARGE || code == E_NOT_SUPPORTED ||
           code == E_CONFIGURATION || code == E_CALIBRATION;
}

int session_data(session *s, const message *m, double now, reply *out)
{
    header h = {.scale = 1};
    const char *damage = m->damage ? m->damage : header_read(m->frames[0], &h);
    s->done = 0;
    *s->why = 0;
    pthread_mutex_lock(&s->guard);
    expire(s, now);
    int holds = !damage && heard(s, h.session, m->arrived);
    int attaches = h.operation == OP_ATTACH && h.session != s->attached;
    int same = h.session == s->attached && is_from(&s->driver, m->peer);
    int foreign = !damage && !(holds && (attaches || same));
    s->damaged += damage != NULL;
    s->foreign += foreign;
    s->sums = damage || foreign || s->checksums;
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
    }
    pthread_mutex_lock(&s->guard);
    if (attaches)
        remember(&s->driver, m->peer);
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
    else if (m->lacking)
        code = refuse(s, m->lacking, "%s", m->why);
    else if (s->sums && crc32c(m->frames[1].data, m->frames[1].size) != h.payload_crc)
        code = refuse(s, E_CHECKSUM, "the payload was damaged on its way (its checksum is wrong)");
    else if (cancelled)
        code = refuse(s, E_CANCELLED, "cancelled by the client");
    else if (stopping)
        code = refuse(s, E_SHUTTING_DOWN, "the server is shutting down");
    else
        code = attend(s, &h, m->frames[1], &answer, &w);
    if (!code && w.full)
        code = refuse(s, E_TOO_LARGE, "the answer is larger than a frame, %lu bytes", (unsigned long)s->t.max_frame_bytes);
    if (code) {
        s->lost |= !is_harmless(code) || (h.operation == OP_RUN && h.flags & FLAG_MORE);
        fail(s, &h, code, out);
        say(s, "request %llu (%s): error %d, %s", (unsigned long long)h.request, name_of(h.operation), code, s->why);
    } else {
        finish_reply(s, out, &answer, &w);
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

void session_gone(session *s, bytes peer)
{
    pthread_mutex_lock(&s->guard);
    if (s->number && (is_from(&s->greeter, peer) || is_from(&s->driver, peer))) {
        say(s, "%s has gone: its session has ended", s->holder);
        s->number = 0;
    }
    pthread_mutex_unlock(&s->guard);
}

int session_holds(session *s, uint64_t number)
{
    pthread_mutex_lock(&s->guard);
    int holds = number && number == s->number;
    pthread_mutex_unlock(&s->guard);
    return holds;
}

uint64_t session_slot_bytes(session *s, uint64_t number)
{
    pthread_mutex_lock(&s->guard);
    uint64_t slot_bytes = number == s->number ? s->slot_bytes : 0;
    pthread_mutex_unlock(&s->guard);
    return slot_bytes;
}

uint8_t *session_room(session *s) { return s->inputs; }

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

session *session_new(const terms *t, double now, char why[WHY_BYTES])
{
    char closing[WHY_BYTES] = "";
    session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    crc32c_begin();
    pthread_mutex_init(&s->guard, NULL);
    s->t = *t;
    s->started = now;
    int code = device_open(&s->d, why);
    const char *nonsense = code ? NULL : nonsense_in(&s->d, t->max_frame_bytes);
    if (nonsense)
        snprintf(why, WHY_BYTES, "%s", nonsense);
    int unsafe = device_close(closing);
    if (unsafe && !code && !nonsense)
        memcpy(why, closing, WHY_BYTES);
    if (code || nonsense || unsafe) {
        session_free(s, closing);
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
    snprintf(s->device, sizeof s->device, "%s %s%s%s", s->d.vendor, s->d.model, s->d.serial ? " " : "",
             s->d.serial ? s->d.serial : "");
    clean(s->device);
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
