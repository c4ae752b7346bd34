/* The bytes of docs/protocol.md: checksums, headers of data messages, msgpack, control frames, named arrays.
 *
 * Header-only C99, without memory of its own. Readers never leave the bytes that they were given, and take no more
 * steps than there are bytes. Writers stop at the end of their room, and say so. One source file defines CODEC_TABLES
 * before it includes this one, and calls `crc32c_begin` before anything else.
 */
#ifndef CODEC_H
#define CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "Arrays travel little-endian, and this server hands them to the device as they came"
#endif

#define PROTOCOL_VERSION 1
#define HEADER_BYTES 80
#define CONTROL_HEADER_BYTES 12
#define LARGEST_CONTROL (1u << 20)
#define LARGEST_LIST 65536u
#define LARGEST_ARRAYS 4096u
#define LARGEST_NAME 256u
#define LARGEST_SHAPE 8u

enum { OP_ATTACH = 1, OP_RESET, OP_RUN, OP_SNAPSHOT, OP_RESTORE, OP_TRANSITION, OP_UPLOAD, OP_READOUT };
enum { OP_REPLY = 0x80, OP_ERROR = 0xFF };
enum { FLAG_MORE = 1, FLAG_OUTPUTS = 2 };
enum { DTYPE_NONE, DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_INT16, DTYPE_INT32, DTYPE_INT8 };
enum {
    E_VERSION = 1, E_BUSY, E_NO_SESSION, E_MALFORMED, E_CHECKSUM, E_SEQUENCE, E_SHAPE, E_INPUT_RANGE, E_TOO_LARGE,
    E_NOT_SUPPORTED, E_STATE_LOST, E_DISCONTINUITY, E_DEVICE_FAULT, E_DEVICE_TIMEOUT, E_CANCELLED, E_SHUTTING_DOWN,
    E_CONFIGURATION, E_INTERNAL, E_DEVICE_DISCONNECTED, E_CALIBRATION
};

typedef struct {
    const uint8_t *data;
    size_t size;
} bytes;

/* ---- numbers -------------------------------------------------------------------------------------------------- */

static inline uint64_t get_number(const uint8_t *at, int size)
{
    uint64_t number = 0;
    while (size--)
        number = number << 8 | at[size];
    return number;
}

static inline void put_number(uint8_t *at, int size, uint64_t number)
{
    for (int i = 0; i < size; i++, number >>= 8)
        at[i] = (uint8_t)number;
}

static inline double get_double(const uint8_t *at)
{
    uint64_t bits = get_number(at, 8);
    double number;
    memcpy(&number, &bits, 8);
    return number;
}

static inline void put_double(uint8_t *at, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, 8);
    put_number(at, 8, bits);
}

static inline size_t dtype_bytes(int dtype)
{
    static const uint8_t size[] = {0, 4, 8, 2, 4, 1};
    return dtype >= 0 && dtype <= DTYPE_INT8 ? size[dtype] : 0;
}

/* ---- CRC-32C (Castagnoli), eight bytes at a time (Kounavis and Berry 2005) --------------------------------------- */

#ifdef CODEC_TABLES
uint32_t crc32c_tables[8][256];
#else
extern uint32_t crc32c_tables[8][256];
#endif

static inline void crc32c_begin(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        crc32c_tables[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) {
            uint32_t before = crc32c_tables[k - 1][i];
            crc32c_tables[k][i] = before >> 8 ^ crc32c_tables[0][before & 0xFF];
        }
}

static inline uint32_t crc32c(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = get_number(data, 8) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++, word >>= 8)
            crc ^= crc32c_tables[7 - k][word & 0xFF];
    }
    while (size--)
        crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *data++) & 0xFF];
    return crc ^ 0xFFFFFFFFu;
}

/* ---- the header of a data message ------------------------------------------------------------------------------- */

typedef struct {
    uint8_t operation;
    uint8_t dtype;
    uint16_t flags;
    uint32_t batch, steps, width;
    uint64_t session, request, step, time_ns;
    double scale, period_s;
    uint32_t payload_crc;
} header;

/* NULL, or why the header cannot be trusted. */
static inline const char *header_read(bytes frame, header *h)
{
    const uint8_t *at = frame.data;
    if (frame.size != HEADER_BYTES)
        return "a header has 80 bytes";
    if (crc32c(at, HEADER_BYTES - 4) != get_number(at + 76, 4))
        return "the header was damaged on its way (its checksum is wrong)";
    if (memcmp(at, "RHWD", 4) || at[4] != PROTOCOL_VERSION || get_number(at + 45, 3))
        return "the header does not begin with RHWD and version 1, or its bytes 45 to 47 are not 0";
    h->operation = at[5];
    h->flags = (uint16_t)get_number(at + 6, 2);
    h->session = get_number(at + 8, 8);
    h->request = get_number(at + 16, 8);
    h->step = get_number(at + 24, 8);
    h->batch = (uint32_t)get_number(at + 32, 4);
    h->steps = (uint32_t)get_number(at + 36, 4);
    h->width = (uint32_t)get_number(at + 40, 4);
    h->dtype = at[44];
    h->scale = get_double(at + 48);
    h->time_ns = get_number(at + 56, 8);
    h->period_s = get_double(at + 64);
    h->payload_crc = (uint32_t)get_number(at + 72, 4);
    return NULL;
}

static inline void header_write(uint8_t frame[HEADER_BYTES], const header *h)
{
    memcpy(frame, "RHWD", 4);
    frame[4] = PROTOCOL_VERSION;
    frame[5] = h->operation;
    put_number(frame + 6, 2, h->flags);
    put_number(frame + 8, 8, h->session);
    put_number(frame + 16, 8, h->request);
    put_number(frame + 24, 8, h->step);
    put_number(frame + 32, 4, h->batch);
    put_number(frame + 36, 4, h->steps);
    put_number(frame + 40, 4, h->width);
    put_number(frame + 44, 4, h->dtype);
    put_double(frame + 48, h->scale);
    put_number(frame + 56, 8, h->time_ns);
    put_double(frame + 64, h->period_s);
    put_number(frame + 72, 4, h->payload_crc);
    put_number(frame + 76, 4, crc32c(frame, HEADER_BYTES - 4));
}

/* ---- msgpack: nil, bool, integers, floats, text, bin, lists, maps ------------------------------------------------- */

typedef enum { MP_NIL, MP_BOOL, MP_INT, MP_FLOAT, MP_TEXT, MP_BIN, MP_LIST, MP_MAP } mp_type;

typedef struct {
    mp_type type;
    uint64_t number; /* of MP_BOOL and MP_INT, in two's complement where `negative` */
    int negative;
    double real;         /* of MP_FLOAT */
    const uint8_t *data; /* of MP_TEXT and MP_BIN */
    size_t size;         /* their bytes, or the entries of a list or map, which follow */
} mp_value;

static inline int text_is_utf8(bytes text)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t i = 0; i < text.size;) {
        uint8_t lead = text.data[i];
        size_t size = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
        if (!size || size > text.size - i)
            return 0;
        uint32_t point = size == 1 ? lead : lead & (0x7Fu >> size);
        for (size_t k = 1; k < size; k++) {
            if (text.data[i + k] >> 6 != 2)
                return 0;
            point = point << 6 | (text.data[i + k] & 0x3F);
        }
        if (point < smallest[size] || point > 0x10FFFF || point >> 11 == 0x1B)
            return 0;
        i += size;
    }
    return 1;
}

static inline uint64_t mp_number(const uint8_t *at, size_t size)
{
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++)
        number = number << 8 | at[i];
    return number;
}

/* Reads one value, of a list or map only its head. Whether there was one; `from` then begins behind it. */
static inline int mp_read(bytes *from, mp_value *v)
{
    if (!from->size)
        return 0;
    uint8_t code = from->data[0];
    const uint8_t *at = from->data + 1;
    size_t left = from->size - 1, used = 0;
    memset(v, 0, sizeof *v);
    if (code < 0x80 || code >= 0xE0) {
        v->type = MP_INT;
        v->negative = code >= 0xE0;
        v->number = v->negative ? code | ~(uint64_t)0xFF : code;
    } else if (code < 0x90) {
        v->type = MP_MAP;
        v->size = code & 0x0F;
    } else if (code < 0xA0) {
        v->type = MP_LIST;
        v->size = code & 0x0F;
    } else if (code < 0xC0) {
        v->type = MP_TEXT;
        v->size = code & 0x1F;
    } else if (code == 0xC0) {
        v->type = MP_NIL;
    } else if (code == 0xC2 || code == 0xC3) {
        v->type = MP_BOOL;
        v->number = code & 1;
    } else {
        /* What is left has a number behind its code: a value, or a size. There are no extensions. */
        static const struct { uint8_t type, size; } heads[] = {
            {MP_BIN, 1}, {MP_BIN, 2}, {MP_BIN, 4}, {0, 0}, {0, 0}, {0, 0}, {MP_FLOAT, 4}, {MP_FLOAT, 8},
            {MP_INT, 1}, {MP_INT, 2}, {MP_INT, 4}, {MP_INT, 8}, {MP_INT, 1}, {MP_INT, 2}, {MP_INT, 4}, {MP_INT, 8},
            {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {MP_TEXT, 1}, {MP_TEXT, 2}, {MP_TEXT, 4},
            {MP_LIST, 2}, {MP_LIST, 4}, {MP_MAP, 2}, {MP_MAP, 4}};
        if (code < 0xC4)
            return 0;
        used = heads[code - 0xC4].size;
        if (!used || left < used)
            return 0;
        v->type = (mp_type)heads[code - 0xC4].type;
        v->number = mp_number(at, used);
        if (v->type == MP_FLOAT && used == 4) {
            uint32_t bits = (uint32_t)v->number;
            float real;
            memcpy(&real, &bits, 4);
            v->real = real;
        } else if (v->type == MP_FLOAT) {
            memcpy(&v->real, &v->number, 8);
        } else if (v->type == MP_INT) {
            int sign = (int)(8 * used - 1);
            v->negative = code >= 0xD0 && v->number >> sign;
            if (v->negative && used < 8)
                v->number |= ~(uint64_t)0 << sign;
        } else {
            v->size = (size_t)v->number;
        }
    }
    if ((v->type == MP_LIST || v->type == MP_MAP) && v->size > LARGEST_LIST)
        return 0;
    if (v->type == MP_TEXT || v->type == MP_BIN) {
        v->data = at + used;
        if (v->size > left - used || (v->type == MP_TEXT && !text_is_utf8((bytes){v->data, v->size})))
            return 0;
        used += v->size;
    }
    from->data += 1 + used;
    from->size -= 1 + used;
    return 1;
}

/* Reads over one value and all that is in it. */
static inline int mp_skip(bytes *from)
{
    mp_value v;
    /* Each value that is still to come has at least one byte, so this does not overflow. */
    for (uint64_t expected = 1; expected; expected--) {
        if (expected > from->size || !mp_read(from, &v))
            return 0;
        expected += v.type == MP_LIST ? v.size : v.type == MP_MAP ? 2 * (uint64_t)v.size : 0;
    }
    return 1;
}

/* Whether `whole` is one map with text keys, and nothing behind it. */
static inline int mp_is_map(bytes whole)
{
    mp_value map, key;
    if (!mp_read(&whole, &map) || map.type != MP_MAP)
        return 0;
    for (size_t i = 0; i < map.size; i++)
        if (!mp_read(&whole, &key) || key.type != MP_TEXT || !mp_skip(&whole))
            return 0;
    return !whole.size;
}

/* The bytes of the value of `name` in a map that `mp_is_map`, and its head; whether there is one. The last one counts. */
static inline int mp_find(bytes map, const char *name, bytes *raw, mp_value *v)
{
    mp_value head, key;
    int found = 0;
    mp_read(&map, &head);
    for (size_t i = 0; i < head.size; i++) {
        mp_read(&map, &key);
        bytes value = map;
        mp_skip(&map);
        if (key.size == strlen(name) && !memcmp(key.data, name, key.size)) {
            raw->data = value.data;
            raw->size = (size_t)(map.data - value.data);
            mp_read(&value, v);
            found = 1;
        }
    }
    return found;
}

typedef struct {
    uint8_t *data;
    size_t size, room;
    int full; /* something did not fit, and was left out */
} writer;

static inline uint8_t *write_room(writer *w, size_t size)
{
    if (w->full || size > w->room - w->size) {
        w->full = 1;
        return NULL;
    }
    w->size += size;
    return w->data + w->size - size;
}

static inline void write_raw(writer *w, const void *data, size_t size)
{
    uint8_t *at = write_room(w, size);
    if (at && size)
        memcpy(at, data, size);
}

/* A code, and a big-endian number of `size` bytes. */
static inline void write_head(writer *w, int code, int size, uint64_t number)
{
    uint8_t *at = write_room(w, 1 + (size_t)size);
    if (!at)
        return;
    at[0] = (uint8_t)code;
    for (int i = size; i > 0; i--, number >>= 8)
        at[i] = (uint8_t)number;
}

static inline void write_nil(writer *w) { write_head(w, 0xC0, 0, 0); }
static inline void write_bool(writer *w, int value) { write_head(w, value ? 0xC3 : 0xC2, 0, 0); }

static inline void write_int(writer *w, uint64_t number)
{
    if (number < 0x80)
        write_head(w, (int)number, 0, 0);
    else if (number <= 0xFF)
        write_head(w, 0xCC, 1, number);
    else if (number <= 0xFFFF)
        write_head(w, 0xCD, 2, number);
    else if (number <= 0xFFFFFFFFu)
        write_head(w, 0xCE, 4, number);
    else
        write_head(w, 0xCF, 8, number);
}

static inline void write_double(writer *w, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, 8);
    write_head(w, 0xCB, 8, bits);
}

/* The head of something with a size: `fix` is the code of short ones, `code` that of a size of two bytes. */
static inline void write_size(writer *w, int fix, size_t fixed, int code, size_t size)
{
    if (size < fixed)
        write_head(w, fix | (int)size, 0, 0);
    else if (size <= 0xFFFF)
        write_head(w, code, 2, size);
    else
        write_head(w, code + 1, 4, size);
}

static inline void write_list(writer *w, size_t size) { write_size(w, 0x90, 16, 0xDC, size); }
static inline void write_map(writer *w, size_t size) { write_size(w, 0x80, 16, 0xDE, size); }

static inline void write_text_bytes(writer *w, bytes text)
{
    if (text.size > 31 && text.size <= 0xFF)
        write_head(w, 0xD9, 1, text.size);
    else
        write_size(w, 0xA0, 32, 0xDA, text.size);
    write_raw(w, text.data, text.size);
}

static inline void write_text(writer *w, const char *text)
{
    write_text_bytes(w, (bytes){(const uint8_t *)text, strlen(text)});
}

static inline void write_bin(writer *w, bytes content)
{
    if (content.size <= 0xFF)
        write_head(w, 0xC4, 1, content.size);
    else
        write_size(w, 0, 0, 0xC5, content.size);
    write_raw(w, content.data, content.size);
}

/* Entries of a map. A text that is NULL is nil. */
static inline void entry_int(writer *w, const char *name, uint64_t number)
{
    write_text(w, name);
    write_int(w, number);
}

static inline void entry_bool(writer *w, const char *name, int value)
{
    write_text(w, name);
    write_bool(w, value);
}

static inline void entry_double(writer *w, const char *name, double number)
{
    write_text(w, name);
    write_double(w, number);
}

static inline void entry_text(writer *w, const char *name, const char *text)
{
    write_text(w, name);
    if (text)
        write_text(w, text);
    else
        write_nil(w);
}

/* ---- control frames ----------------------------------------------------------------------------------------------- */

/* The msgpack map in a control frame; whether it is one. */
static inline int control_read(bytes frame, bytes *map)
{
    if (frame.size <= CONTROL_HEADER_BYTES || frame.size > LARGEST_CONTROL)
        return 0;
    const uint8_t *at = frame.data;
    *map = (bytes){at + CONTROL_HEADER_BYTES, frame.size - CONTROL_HEADER_BYTES};
    return !memcmp(at, "RHWC", 4) && at[4] == PROTOCOL_VERSION && !get_number(at + 5, 3) &&
           crc32c(map->data, map->size) == get_number(at + 8, 4) && mp_is_map(*map);
}

/* Begins a frame: the map is to be written behind it. */
static inline void control_begin(writer *w) { write_room(w, CONTROL_HEADER_BYTES); }

/* Fills in what stands before the map. */
static inline void control_end(writer *w)
{
    memcpy(w->data, "RHWC", 4);
    put_number(w->data + 4, 4, PROTOCOL_VERSION);
    put_number(w->data + 8, 4, crc32c(w->data + CONTROL_HEADER_BYTES, w->size - CONTROL_HEADER_BYTES));
}

/* ---- named arrays ------------------------------------------------------------------------------------------------- */

typedef struct {
    bytes name;
    char dtype[3]; /* "i2" */
    uint32_t dimensions;
    uint64_t shape[LARGEST_SHAPE];
    bytes data;
} named_array;

/* How many arrays `payload` begins with, or -1. Then `payload` begins behind the head of the map. */
static inline int64_t named_begin(bytes *payload)
{
    mp_value map;
    if (!mp_is_map(*payload) || !mp_read(payload, &map) || map.size > LARGEST_ARRAYS)
        return -1;
    return (int64_t)map.size;
}

/* The next array; whether it is one. */
static inline int named_read(bytes *payload, named_array *array)
{
    mp_value name, entry, dtype, shape, length, data;
    size_t characters = 0;
    if (!mp_read(payload, &name) || !mp_read(payload, &entry) || entry.type != MP_LIST || entry.size != 3)
        return 0;
    for (size_t i = 0; i < name.size; i++)
        characters += name.data[i] >> 6 != 2;
    if (characters > LARGEST_NAME || !mp_read(payload, &dtype) || dtype.type != MP_TEXT || dtype.size != 2)
        return 0;
    memcpy(array->dtype, dtype.data, 2);
    array->dtype[2] = 0;
    if (!strstr("f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1", array->dtype) || array->dtype[0] == ' ' || array->dtype[1] == ' ')
        return 0;
    if (!mp_read(payload, &shape) || shape.type != MP_LIST || shape.size > LARGEST_SHAPE)
        return 0;
    uint64_t item = (uint64_t)(array->dtype[1] - '0'), count = item;
    int empty = 0;
    array->dimensions = (uint32_t)shape.size;
    for (uint32_t i = 0; i < array->dimensions; i++) {
        if (!mp_read(payload, &length) || length.type != MP_INT || length.negative)
            return 0;
        array->shape[i] = length.number;
        if (!length.number)
            empty = 1;
        else if (count > UINT64_MAX / length.number)
            return 0;
        else
            count *= length.number;
    }
    if (!mp_read(payload, &data) || data.type != MP_BIN || data.size != (empty ? 0 : count))
        return 0;
    array->name = (bytes){name.data, name.size};
    array->data = (bytes){data.data, data.size};
    return 1;
}

static inline void named_write(writer *w, const named_array *array)
{
    write_text_bytes(w, array->name);
    write_list(w, 3);
    write_text(w, array->dtype);
    write_list(w, array->dimensions);
    for (uint32_t i = 0; i < array->dimensions; i++)
        write_int(w, array->shape[i]);
    write_bin(w, array->data);
}

#endif
