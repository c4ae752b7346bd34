#include "board.h"

#include <string.h>

#include "device.h"
#include "frame.h"

#define VERSION 1
#define ANSWER 0x80
#define INT16 3
#define STEP_HEAD 4
#define RUN_HEAD 6
#define NAK_HEAD 9
/* So many bytes are taken before the lease is looked at again. */
#define BYTES_AT_ONCE 64

#define WIDEST (DEVICE_INPUTS > DEVICE_NODES ? DEVICE_INPUTS : DEVICE_NODES)
#define ROOM (BOARD_FRAME_BYTES - FRAME_HEADER - FRAME_CHECKS)
/* A NAK after all steps but one must have room for them, too. */
#define RUN_STEPS ((ROOM - NAK_HEAD) / (2 * WIDEST))

#if BOARD_FRAME_BYTES < 256 || BOARD_FRAME_BYTES > 65535
#error "BOARD_FRAME_BYTES is 256 to 65535"
#endif
#if BOARD_LEASE_MS < 100 || BOARD_LEASE_MS > 65535
#error "BOARD_LEASE_MS is 100 to 65535"
#endif
#if ROOM - STEP_HEAD < 2 * WIDEST
#error "a step does not fit into BOARD_FRAME_BYTES"
#endif

enum { PING = 1, INFO, ATTACH, RESET, STEP, RUN, STATUS, DETACH, NAK = 0xFF };
enum { SAFE, AT_REST, DRIVEN, STATE_LOST, FAULT };
enum {
    NO_ERROR,
    ERROR_VERSION,
    ERROR_NO_SESSION = 3,
    ERROR_MALFORMED,
    ERROR_CHECKSUM,
    ERROR_SEQUENCE,
    ERROR_RANGE = 8,
    ERROR_TOO_LARGE,
    ERROR_NOT_SUPPORTED,
    ERROR_STATE_LOST,
    ERROR_DISCONTINUITY,
    COPY = 0xFE /* no error of the page: the request is dropped */
};

static frame_in in;
static uint8_t out[BOARD_FRAME_BYTES];
static uint16_t out_length;

static uint16_t session, last_number;
static uint32_t step;
static uint8_t is_lost;
static const char *problem; /* what STATUS says */
static uint32_t since_ms, heard_ms;
static uint32_t frames, damaged, too_long, copies, leases_ended;

/* ---- numbers in frames --------------------------------------------------------------------------- */

static void put8(uint8_t number)
{
    out[out_length++] = number;
}

static void put16(uint16_t number)
{
    put8((uint8_t)number);
    put8((uint8_t)(number >> 8));
}

static void put32(uint32_t number)
{
    put16((uint16_t)number);
    put16((uint16_t)(number >> 16));
}

static void put_float(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    put32(bits);
}

/* With the byte 0 at its end. */
static void put_text(const char *text)
{
    do
        put8((uint8_t)*text);
    while (*text++);
}

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)((uint16_t)at[1] << 8));
}

static uint32_t get32(const uint8_t *at)
{
    return get16(at) | (uint32_t)get16(at + 2) << 16;
}

/* ---- answers ------------------------------------------------------------------------------------- */

static void begin_answer(uint8_t operation, uint16_t of_session, uint16_t number)
{
    out_length = 0;
    put8(VERSION);
    put8(operation);
    put16(of_session);
    put16(number);
}

static const char *text_of(uint8_t error)
{
    switch (error) {
    case ERROR_VERSION:
        return "version 1 only";
    case ERROR_NO_SESSION:
        return "ATTACH first";
    case ERROR_MALFORMED:
        return "malformed";
    case ERROR_CHECKSUM:
        return "";
    case ERROR_SEQUENCE:
        return "out of sequence";
    case ERROR_RANGE:
        return "input out of range";
    case ERROR_TOO_LARGE:
        return "too large";
    case ERROR_NOT_SUPPORTED:
        return "no such operation";
    case ERROR_STATE_LOST:
        return "RESET first";
    default:
        return device_problem;
    }
}

/* `done` steps were done. Their states lie behind the head of a RUN in `out`, and go behind the text of the NAK. */
static void refuse(uint16_t of_session, uint16_t number, uint8_t error, uint32_t at_step, uint16_t done)
{
    const char *text = text_of(error);
    const uint16_t states = FRAME_HEADER + RUN_HEAD, bytes = (uint16_t)(2 * done * DEVICE_NODES);
    const uint16_t room = (uint16_t)(ROOM - NAK_HEAD - bytes);
    uint8_t length = 0;
    while (text[length] && length < room && length < 255)
        length++;
    for (uint16_t left = bytes; left--;)
        out[FRAME_HEADER + NAK_HEAD + length + left] = out[states + left];
    begin_answer(NAK, of_session, number);
    put8(error);
    put8(is_lost);
    put32(at_step);
    put16(done);
    put8(length);
    memcpy(out + out_length, text, length);
    frame_send(out, (uint16_t)(out_length + length + bytes));
}

static void put_info(void)
{
    put8(VERSION);
    put8(VERSION);
    put16(DEVICE_INPUTS);
    put16(DEVICE_NODES);
    put16(BOARD_FRAME_BYTES);
    put16(RUN_STEPS);
    put16(BOARD_LEASE_MS);
    put16(DEVICE_MEMORY_STEPS);
    put8(INT16);
    put8(INT16);
    put8(DEVICE_CONTINUITY);
    put8(DEVICE_FLAGS);
    put_float(DEVICE_SCALE);
    put_float(DEVICE_SCALE);
    put_float(DEVICE_LOWEST * DEVICE_SCALE);
    put_float(DEVICE_HIGHEST * DEVICE_SCALE);
    put_float(DEVICE_STEP_PERIOD_S);
    put_float(DEVICE_RESET_TIME_S);
    put_text(DEVICE_VENDOR);
    put_text(DEVICE_MODEL);
    put_text(DEVICE_SERIAL);
    put_text(DEVICE_FIRMWARE);
    put_text(DEVICE_CONTENT);
}

static void put_status(void)
{
    uint8_t state = SAFE;
    if (session && is_lost)
        state = *problem ? FAULT : STATE_LOST;
    else if (session)
        state = step ? DRIVEN : AT_REST;
    put8(state);
    put16(session);
    put32(step);
    put32(clock_ms() - since_ms);
    put32(frames);
    put32(damaged);
    put32(too_long);
    put32(copies);
    put32(leases_ended);
    /* As much of it as fits, and the 0. */
    for (const char *text = problem; *text && out_length < BOARD_FRAME_BYTES - FRAME_CRC16 - 1; text++)
        put8((uint8_t)*text);
    put8(0);
}

/* ---- the device ---------------------------------------------------------------------------------- */

static void be_at_rest(void)
{
    step = 0;
    is_lost = 0;
    problem = "";
}

static void go_safe(void)
{
    device_safe();
    be_at_rest();
    session = last_number = 0;
}

/* Drives steps whose inputs begin at `inputs`, and puts their states. */
static uint8_t drive(const uint8_t *inputs, uint16_t steps, uint16_t *done)
{
    int16_t counts[DEVICE_INPUTS], states[DEVICE_NODES];
    for (*done = 0; *done < steps; ++*done) {
        for (uint16_t i = 0; i < DEVICE_INPUTS; i++, inputs += 2)
            counts[i] = (int16_t)get16(inputs);
        uint8_t error = device_step(counts, states);
        if (error) {
            is_lost = 1;
            if (error != ERROR_DISCONTINUITY)
                problem = device_problem;
            return error;
        }
        step++;
        for (uint16_t i = 0; i < DEVICE_NODES; i++)
            put16((uint16_t)states[i]);
    }
    return NO_ERROR;
}

static uint8_t lose_state(uint8_t error)
{
    is_lost = 1;
    return error;
}

/* STEP and RUN. `at` is the step that an error is about. */
static uint8_t driven(uint8_t operation, const uint8_t *rest, uint16_t length, uint32_t *at, uint16_t *done)
{
    const uint8_t head = operation == RUN ? RUN_HEAD : STEP_HEAD;
    uint16_t steps = 1;
    if (operation == RUN && !RUN_STEPS)
        return ERROR_NOT_SUPPORTED;
    if (is_lost)
        return ERROR_STATE_LOST;
    if (length < head)
        return lose_state(ERROR_MALFORMED);
    if (operation == RUN) {
        steps = get16(rest + STEP_HEAD);
        if (steps > RUN_STEPS)
            return ERROR_TOO_LARGE;
    }
    if (!steps || length - head != (int32_t)2 * steps * DEVICE_INPUTS)
        return lose_state(ERROR_MALFORMED);
    if (get32(rest) != step)
        return lose_state(ERROR_SEQUENCE);
    for (uint16_t i = 0; i < steps * DEVICE_INPUTS; i++) {
        int32_t count = (int16_t)get16(rest + head + 2 * i);
        if (count < DEVICE_LOWEST || count > DEVICE_HIGHEST) {
            *at = step + i / DEVICE_INPUTS;
            return ERROR_RANGE;
        }
    }
    memcpy(out + out_length, rest, head);
    out_length = (uint16_t)(out_length + head);
    uint8_t error = drive(rest + head, steps, done);
    *at = step;
    return error;
}

/* ---- requests ------------------------------------------------------------------------------------ */

static uint8_t attach(uint16_t of_session, uint16_t number, uint16_t length)
{
    if (of_session == session && session) {
        copies++;
        return COPY;
    }
    if (!of_session || number || length)
        return ERROR_MALFORMED;
    session = of_session;
    last_number = 0;
    device_reset();
    be_at_rest();
    return NO_ERROR;
}

/* RESET, STEP, RUN and DETACH. */
static uint8_t counted(uint8_t operation, uint16_t of_session, uint16_t number, uint16_t length, uint32_t *at,
                       uint16_t *done)
{
    if (of_session != session || !session)
        return ERROR_NO_SESSION;
    if (number == last_number) {
        copies++;
        return COPY;
    }
    uint8_t is_due = number == (uint16_t)(last_number + 1);
    last_number = number;
    if (!is_due)
        return lose_state(ERROR_SEQUENCE);
    if (operation == STEP || operation == RUN)
        return driven(operation, in.body + FRAME_HEADER, length, at, done);
    if (length)
        return lose_state(ERROR_MALFORMED);
    if (operation == RESET) {
        device_reset();
        be_at_rest();
    } else
        go_safe();
    return NO_ERROR;
}

static void answer_intact(void)
{
    const uint8_t operation = in.body[1];
    const uint16_t of_session = get16(in.body + 2), number = get16(in.body + 4);
    const uint16_t length = (uint16_t)(in.length - FRAME_HEADER);
    uint8_t error = NO_ERROR;
    uint16_t done = 0;
    uint32_t at = step;
    frames++;
    if (in.body[0] != VERSION) {
        refuse(of_session, number, ERROR_VERSION, step, 0);
        return;
    }
    if (operation & ANSWER)
        return;
    begin_answer(operation | ANSWER, of_session, number);
    switch (operation) {
    case PING:
    case INFO:
    case STATUS:
        if (length)
            error = ERROR_MALFORMED;
        else if (operation == INFO)
            put_info();
        else if (operation == STATUS)
            put_status();
        break;
    case ATTACH:
        error = attach(of_session, number, length);
        break;
    case RESET:
    case STEP:
    case RUN:
    case DETACH:
        error = counted(operation, of_session, number, length, &at, &done);
        break;
    default:
        error = ERROR_NOT_SUPPORTED;
    }
    if (error == NO_ERROR)
        frame_send(out, out_length);
    else if (error != COPY)
        refuse(of_session, number, error, at, done);
    if (of_session == session)
        heard_ms = clock_ms();
}

void board_begin(void)
{
    memset(&in, 0, sizeof in);
    frames = damaged = too_long = copies = leases_ended = 0;
    since_ms = clock_ms();
    go_safe();
}

void board_poll(void)
{
    for (uint8_t count = 0; count < BYTES_AT_ONCE; count++) {
        int16_t byte = uart_read();
        if (byte < 0)
            break;
        switch (frame_take(&in, (uint8_t)byte)) {
        case FRAME_INTACT:
            answer_intact();
            break;
        case FRAME_DAMAGED:
            damaged++;
            refuse(0, 0, ERROR_CHECKSUM, step, 0);
            break;
        case FRAME_TOO_LONG:
            too_long++;
            refuse(0, 0, ERROR_TOO_LARGE, step, 0);
            break;
        }
    }
    if (session && clock_ms() - heard_ms >= BOARD_LEASE_MS) {
        leases_ended++;
        go_safe();
    }
}
