/* Frames on a serial line: COBS with a byte 0 behind it, CRC-16/CCITT-FALSE, and CRC-32 (docs/serial-protocol.md). */
#ifndef FRAME_H
#define FRAME_H

#include <stdint.h>

#include "board.h"
#include "uart.h"

#define FRAME_HEADER 6
#define FRAME_CRC16 2
#define FRAME_CRC32 4 /* of frames with inputs or states */
#define FRAME_CHECKS (FRAME_CRC16 + FRAME_CRC32)
#define FRAME_BLOCK 254 /* longest block of COBS */

/* What take_byte says. */
enum { FRAME_NONE, FRAME_INTACT, FRAME_DAMAGED, FRAME_TOO_LONG };

/* A frame that is coming in. All zeros: nothing has come. */
typedef struct {
    uint8_t body[BOARD_FRAME_BYTES];
    uint16_t length;
    uint8_t left;     /* bytes of the block that are still to come */
    uint8_t has_zero; /* a zero follows the block, unless it is the last one */
    uint8_t has_begun;
    uint8_t is_too_long;
} frame_in;

static uint16_t frame_crc16(const uint8_t *bytes, uint16_t length)
{
    uint16_t crc = 0xFFFF;
    while (length--) {
        crc = (uint16_t)(crc ^ (uint16_t)((uint16_t)*bytes++ << 8));
        for (uint8_t bit = 0; bit < 8; bit++)
            crc = (uint16_t)(((unsigned)crc << 1) ^ (crc & 0x8000u ? 0x1021u : 0u));
    }
    return crc;
}

static uint32_t frame_crc32(const uint8_t *bytes, uint16_t length)
{
    uint32_t crc = 0xFFFFFFFF;
    while (length--) {
        crc ^= *bytes++;
        for (uint8_t bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

static uint32_t frame_number(const uint8_t *at, uint8_t bytes)
{
    uint32_t number = 0;
    while (bytes--)
        number = number << 8 | at[bytes];
    return number;
}

/* STEP, RUN, their answers, and NAK. */
static uint8_t frame_has_crc32(const uint8_t *body)
{
    return body[1] == 0x05 || body[1] == 0x06 || body[1] == 0x85 || body[1] == 0x86 || body[1] == 0xFF;
}

static void frame_keep(frame_in *frame, uint8_t byte)
{
    if (frame->length == BOARD_FRAME_BYTES)
        frame->is_too_long = 1;
    else
        frame->body[frame->length++] = byte;
}

static uint8_t frame_ended(frame_in *frame)
{
    if (!frame->has_begun)
        return FRAME_NONE;
    if (frame->is_too_long)
        return FRAME_TOO_LONG;
    if (frame->left || frame->length < FRAME_HEADER + FRAME_CRC16)
        return FRAME_DAMAGED;
    frame->length = (uint16_t)(frame->length - FRAME_CRC16);
    if (frame_crc16(frame->body, frame->length) != frame_number(frame->body + frame->length, FRAME_CRC16))
        return FRAME_DAMAGED;
    if (!frame_has_crc32(frame->body))
        return FRAME_INTACT;
    if (frame->length < FRAME_HEADER + FRAME_CRC32)
        return FRAME_DAMAGED;
    frame->length = (uint16_t)(frame->length - FRAME_CRC32);
    return frame_crc32(frame->body, frame->length) == frame_number(frame->body + frame->length, FRAME_CRC32)
               ? FRAME_INTACT
               : FRAME_DAMAGED;
}

/* The next byte of the line. The body of an intact frame, without its checks, is in frame->body until the next byte is
 * taken. */
static uint8_t frame_take(frame_in *frame, uint8_t byte)
{
    if (!byte) {
        uint8_t found = frame_ended(frame);
        frame->left = frame->has_zero = frame->has_begun = frame->is_too_long = 0;
        return found;
    }
    if (!frame->has_begun)
        frame->length = 0;
    frame->has_begun = 1;
    if (frame->left) {
        frame->left--;
        frame_keep(frame, byte);
        return FRAME_NONE;
    }
    if (frame->has_zero)
        frame_keep(frame, 0);
    frame->left = (uint8_t)(byte - 1);
    frame->has_zero = frame->left < FRAME_BLOCK;
    return FRAME_NONE;
}

/* Sends a body, which has room for its checks behind it. */
static void frame_send(uint8_t *body, uint16_t length)
{
    uint16_t at = 0;
    if (frame_has_crc32(body)) {
        uint32_t crc = frame_crc32(body, length);
        for (uint8_t byte = 0; byte < FRAME_CRC32; byte++, crc >>= 8)
            body[length++] = (uint8_t)crc;
    }
    const uint16_t crc = frame_crc16(body, length);
    body[length++] = (uint8_t)crc;
    body[length++] = (uint8_t)(crc >> 8);
    for (;;) {
        uint8_t block = 0;
        while (block < FRAME_BLOCK && at + block < length && body[at + block])
            block++;
        uart_write((uint8_t)(block + 1));
        for (uint8_t sent = 0; sent < block; sent++)
            uart_write(body[at++]);
        if (at == length)
            break;
        if (block < FRAME_BLOCK)
            at++;
    }
    uart_write(0);
}

#endif
