/* Random and damaged frames at the board, in one process: ./fuzz COUNT [SEED].
 *
 * Whatever comes, each answer is a frame of the page, states are those of a device beside it, and the board still
 * answers rightly in the end. Build it with -fsanitize=address,undefined. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board.h"
#include "device.h"
#include "uart.h"

#define MOST (BOARD_FRAME_BYTES + BOARD_FRAME_BYTES / 254 + 2)

static uint8_t line_in[4 * MOST], line_out[16 * MOST];
static size_t in_count, in_at, out_count;
static uint32_t now_ms, word = 1;

int16_t uart_read(void)
{
    return in_at < in_count ? line_in[in_at++] : -1;
}

void uart_write(uint8_t byte)
{
    if (out_count == sizeof line_out)
        abort();
    line_out[out_count++] = byte;
}

uint32_t clock_ms(void)
{
    return now_ms;
}

static uint8_t drive;

void drive_enable(uint8_t level)
{
    drive = level;
}

static uint32_t drawn(uint32_t below)
{
    word ^= word << 13;
    word ^= word >> 17;
    word ^= word << 5;
    return word % below;
}

static void fail(const char *what)
{
    fprintf(stderr, "fuzz: %s\n", what);
    exit(1);
}

static uint16_t crc_of(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xFFFF;
    for (size_t at = 0; at < 8 * count; at++) {
        uint32_t bit = bytes[at / 8] >> (7 - at % 8) & 1u;
        crc = (crc << 1 ^ ((crc >> 15 ^ bit) & 1u ? 0x1021u : 0u)) & 0xFFFFu;
    }
    return (uint16_t)crc;
}

/* The CRC-32 of bytes, bit by bit. */
static uint32_t crc32_of(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t at = 0; at < 8 * count; at++) {
        uint32_t bit = bytes[at / 8] >> at % 8 & 1u;
        crc = crc >> 1 ^ ((crc ^ bit) & 1u ? 0xEDB88320u : 0u);
    }
    return crc ^ 0xFFFFFFFFu;
}

static int has_data(uint8_t operation)
{
    return (operation & 0x7F) == 5 || (operation & 0x7F) == 6 || operation == 0xFF;
}

/* ---- the host's side ----------------------------------------------------------------------------- */

static uint8_t request[2 * BOARD_FRAME_BYTES];
static size_t request_length;

static void put(uint32_t number, int bytes)
{
    for (; bytes--; number >>= 8)
        request[request_length++] = (uint8_t)number;
}

static void begin(uint8_t operation, uint16_t session, uint16_t number)
{
    request_length = 0;
    put(1, 1);
    put(operation, 1);
    put(session, 2);
    put(number, 2);
}

/* Puts the request on the line, with its checks. */
static void send_request(void)
{
    size_t code = in_count++, length;
    if (has_data(request[1]))
        put(crc32_of(request, request_length), 4);
    put(crc_of(request, request_length), 2);
    length = request_length;
    for (size_t at = 0; at < length; at++) {
        if (request[at])
            line_in[in_count++] = request[at];
        if (!request[at] || in_count - code == 255) {
            line_in[code] = (uint8_t)(in_count - code);
            code = in_count++;
        }
    }
    line_in[code] = (uint8_t)(in_count - code);
    line_in[in_count++] = 0;
}

static void let_it_work(void)
{
    while (in_at < in_count)
        board_poll();
    in_at = in_count = 0;
}

static uint8_t answer[2 * BOARD_FRAME_BYTES];

/* The answer that begins at `*at` on the line; its length without the checks. */
static size_t next_answer(size_t *at)
{
    size_t length = 0;
    while (line_out[*at]) {
        uint8_t code = line_out[*at];
        for (uint8_t i = 1; i < code; i++) {
            if (*at + i >= out_count || !line_out[*at + i] || length == BOARD_FRAME_BYTES)
                fail("an answer is no COBS, or too long");
            answer[length++] = line_out[*at + i];
        }
        *at += code;
        if (*at >= out_count)
            fail("an answer has no end");
        if (code < 255 && line_out[*at])
            answer[length++] = 0;
    }
    ++*at;
    if (length < 8 || crc_of(answer, length - 2) != (uint16_t)(answer[length - 2] | answer[length - 1] << 8))
        fail("the CRC-16 of an answer is wrong");
    length -= 2;
    if (answer[0] != 1 || answer[1] <= 0x80 || (answer[1] > 0x88 && answer[1] != 0xFF))
        fail("an answer is none of the page");
    if (!has_data(answer[1]))
        return length;
    length -= 4;
    if (length < 6 || crc32_of(answer, length) != (answer[length] | (uint32_t)answer[length + 1] << 8 |
                                                   (uint32_t)answer[length + 2] << 16 | (uint32_t)answer[length + 3] << 24))
        fail("the CRC-32 of an answer is wrong");
    return length;
}

/* ---- a device beside it -------------------------------------------------------------------------- */

static virtual_nodes beside;
static int is_known; /* whether `beside` is where the board's device is */

static void expect_states(const uint8_t *inputs, uint16_t steps, const uint8_t *states)
{
    for (uint16_t s = 0; s < steps; s++) {
        int16_t counts[DEVICE_INPUTS];
        for (int i = 0; i < DEVICE_INPUTS; i++, inputs += 2)
            counts[i] = (int16_t)(uint16_t)(inputs[0] | inputs[1] << 8);
        vn_step(&beside, counts);
        for (int i = 0; i < DEVICE_NODES; i++, states += 2)
            if ((int16_t)(uint16_t)(states[0] | states[1] << 8) != beside.states[i])
                fail("states are wrong");
    }
}

/* The answer is to the request as it was sent. */
static void compare(size_t length)
{
    uint16_t steps = (uint16_t)(answer[1] == 0x86 ? answer[10] | answer[11] << 8 : 1);
    size_t head = answer[1] == 0x86 ? 12 : 10;
    if (answer[1] == 0x83 || answer[1] == 0x84) {
        vn_reset(&beside);
        is_known = 1;
    } else if ((answer[1] == 0x85 || answer[1] == 0x86) && is_known) {
        if (length != head + 2u * steps * DEVICE_NODES || memcmp(answer + 1 + 1, request + 2, head - 2))
            fail("an answer does not fit its request");
        expect_states(request + head, steps, answer + head);
    }
}

static uint16_t session, number;
static uint32_t step;

/* A request that is well formed, mostly. */
static void draw_request(void)
{
    static const uint8_t operations[] = {1, 2, 3, 4, 4, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 7, 8};
    uint8_t operation = drawn(50) ? operations[drawn(sizeof operations)] : (uint8_t)drawn(256);
    uint16_t steps = (uint16_t)(1 + drawn(3));
    if (!is_known && !drawn(3))
        operation = 3;
    if (operation == 3) {
        session = (uint16_t)drawn(drawn(20) ? 65536 : 4);
        number = 0;
        step = 0;
    } else if (operation == 4)
        step = 0;
    if (operation != 3 && drawn(50))
        number++;
    begin(operation, drawn(100) ? session : (uint16_t)drawn(65536), drawn(100) ? number : (uint16_t)drawn(65536));
    if (operation == 5 || operation == 6)
        put(drawn(100) ? step : drawn(1u << 31), 4);
    if (operation == 6)
        put(drawn(100) ? steps : drawn(65536), 2);
    if (operation == 5)
        steps = 1;
    if (operation == 5 || operation == 6) {
        for (int i = 0; i < steps * DEVICE_INPUTS; i++)
            put(drawn(65536), 2);
        step += steps;
    }
    if (!drawn(50))
        for (uint32_t more = drawn(BOARD_FRAME_BYTES / 2); more--;)
            put(drawn(256), 1);
}

/* Damages what is on the line. 0 if it is whole. */
static int damage(void)
{
    switch (drawn(20)) {
    case 0:
        for (uint32_t bits = 1 + drawn(3); bits--;)
            line_in[drawn((uint32_t)in_count)] ^= (uint8_t)(1u << drawn(8));
        return 1;
    case 1: /* its end is missing */
        in_count = drawn((uint32_t)in_count);
        return 1;
    case 2: /* some bytes are lost */
        for (uint32_t at = drawn((uint32_t)in_count), lost = 1 + drawn(5); at + lost < in_count; at++)
            line_in[at] = line_in[at + lost];
        return 1;
    case 3: /* garbage */
        in_count = drawn(2 * MOST);
        for (size_t at = 0, zeros = 1 + drawn(500); at < in_count; at++)
            line_in[at] = (uint8_t)(drawn((uint32_t)zeros) ? 1 + drawn(255) : 0);
        return 1;
    case 4: /* it comes twice */
        memcpy(line_in + in_count, line_in, in_count);
        in_count *= 2;
        return 1;
    default:
        return 0;
    }
}

static uint32_t find_step(void)
{
    size_t at = 0;
    line_in[in_count++] = 0;
    let_it_work();
    out_count = 0;
    begin(7, session, 0);
    send_request();
    let_it_work();
    next_answer(&at);
    return answer[9] | (uint32_t)answer[10] << 8 | (uint32_t)answer[11] << 16 | (uint32_t)answer[12] << 24;
}

/* Without damage the page holds to the letter. */
static void still_right(void)
{
    /* Ends half a frame. */
    line_in[in_count++] = 0;
    let_it_work();
    for (int phase = 0; phase < 4; phase++) {
        static const uint8_t operations[] = {3, 4, 6, 8};
        size_t at = 0;
        begin(operations[phase], 0x1234, (uint16_t)phase);
        if (phase == 2) {
            put(0, 4);
            put(2, 2);
            for (int i = 0; i < 2 * DEVICE_INPUTS; i++)
                put(drawn(1000), 2);
        }
        out_count = 0;
        send_request();
        let_it_work();
        compare(next_answer(&at));
        if (answer[1] != (operations[phase] | 0x80) || at != out_count)
            fail("it does not answer rightly any more");
        if (drive != (phase < 3))
            fail("the drive is not as it should be");
    }
    is_known = 0;
}

int main(int count, char **arguments)
{
    long frames = count > 1 ? atol(arguments[1]) : 10000, answers = 0, compared = 0;
    int was_damaged = 0;
    word = count > 2 ? (uint32_t)atol(arguments[2]) : 1;
    if (!word || frames < 1) {
        fprintf(stderr, "usage: fuzz COUNT [SEED], both at least 1\n");
        return 2;
    }
    vn_init(&beside);
    board_begin();
    for (long n = 0; n < frames; n++) {
        size_t at = 0;
        int is_damaged, is_first = 1;
        if (n % 1000 == 999)
            still_right();
        if (n % 100 == 0 && session)
            step = find_step();
        draw_request();
        if (drawn(20))
            line_in[in_count++] = 0;
        send_request();
        is_damaged = damage();
        out_count = 0;
        let_it_work();
        while (at < out_count) {
            size_t length = next_answer(&at);
            /* A frame whose byte 0 was lost is ended by the next request. */
            if (is_damaged || was_damaged || !is_first)
                is_known = 0;
            else {
                compared += is_known && (answer[1] == 0x85 || answer[1] == 0x86);
                compare(length);
            }
            is_first = 0;
            answers++;
        }
        was_damaged = is_damaged;
        now_ms += drawn(1000) ? drawn(10) : drawn(2 * BOARD_LEASE_MS);
    }
    still_right();
    printf("%ld frames, %ld answers, %ld of them with states that were compared\n", frames, answers, compared);
    return compared ? 0 : 1;
}
