/* Reads frames with codec.h and writes them again: golden_frames control|data FILE... prints a line for each file, its
 * header and whether the bytes are the same, or "refused". */
#include <stdio.h>
#include <stdlib.h>

#define CODEC_TABLES
#include "codec.h"

/* In two's complement; the server itself writes none. */
static void write_negative(writer *w, uint64_t number)
{
    int size = ~number < 0x80 ? 1 : ~number < 0x8000 ? 2 : ~number < 0x80000000u ? 4 : 8;
    if (~number < 32)
        write_head(w, (int)(number & 0xFF), 0, 0);
    else
        write_head(w, size == 1 ? 0xD0 : size == 2 ? 0xD1 : size == 4 ? 0xD2 : 0xD3, size, number);
}

static void copy_value(bytes *from, writer *w)
{
    mp_value v;
    if (!mp_read(from, &v))
        exit(1);
    switch (v.type) {
    case MP_NIL: write_nil(w); break;
    case MP_BOOL: write_bool(w, (int)v.number); break;
    case MP_FLOAT: write_double(w, v.real); break;
    case MP_TEXT: write_text_bytes(w, (bytes){v.data, v.size}); break;
    case MP_BIN: write_bin(w, (bytes){v.data, v.size}); break;
    case MP_INT:
        if (v.negative)
            write_negative(w, v.number);
        else
            write_int(w, v.number);
        break;
    case MP_LIST: write_list(w, v.size); break;
    case MP_MAP: write_map(w, v.size); break;
    }
    for (size_t i = v.type == MP_MAP ? 2 * v.size : v.type == MP_LIST ? v.size : 0; i; i--)
        copy_value(from, w);
}

/* Whether all of it is named arrays, which are then copied. */
static int copy_arrays(bytes from, writer *w)
{
    named_array array;
    int64_t count = named_begin(&from);
    write_map(w, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        if (!named_read(&from, &array))
            return 0;
        named_write(w, &array);
    }
    return 1;
}

static void copy_payload(bytes payload, int is_array, writer *w)
{
    writer arrays = *w;
    if (is_array || !payload.size)
        write_raw(w, payload.data, payload.size);
    else if (copy_arrays(payload, &arrays))
        *w = arrays;
    else
        copy_value(&payload, w);
}

int main(int count, char **arguments)
{
    static uint8_t whole[1 << 16], again[1 << 16];
    crc32c_begin();
    for (int i = 2; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        if (!file)
            return 1;
        bytes frame = {whole, fread(whole, 1, sizeof whole, file)}, map;
        fclose(file);
        writer w = {again, 0, sizeof again, 0};
        if (arguments[1][0] == 'c') {
            if (!control_read(frame, &map)) {
                printf("refused\n");
                continue;
            }
            control_begin(&w);
            copy_value(&map, &w);
            control_end(&w);
        } else {
            header h;
            bytes payload = {whole + HEADER_BYTES, frame.size - HEADER_BYTES};
            if (header_read((bytes){whole, HEADER_BYTES}, &h) || crc32c(payload.data, payload.size) != h.payload_crc) {
                printf("refused\n");
                continue;
            }
            printf("%u %u %llu %llu %llu %u %u %u %u ", h.operation, h.flags,
                   (unsigned long long)h.session, (unsigned long long)h.request, (unsigned long long)h.step, h.batch,
                   h.steps, h.width, h.dtype);
            header_write(again, &h);
            w.size = HEADER_BYTES;
            copy_payload(payload, h.dtype, &w);
        }
        printf("%s\n", w.size == frame.size && !memcmp(whole, again, frame.size) ? "same" : "other");
    }
    return 0;
}
