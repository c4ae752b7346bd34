/* What a device declares: whether it makes sense, and how it is written. */
#include <float.h>

#include "state.h"

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

void declare(writer *w, const declaration *d)
{
    const struct { const char *name, *text; } texts[] = {
        {"vendor", d->vendor},     {"model", d->model},     {"serial", d->serial},
        {"firmware", d->firmware}, {"content", d->content},
    };
    int wide = is_wide(d->input_dtype) || is_wide(d->state_dtype);
    write_map(w, 6);
    write_encoding(w, "inputs", d->input_dtype, d->input_scale);
    write_encoding(w, "states", d->state_dtype, d->state_scale);
    entry_bool(w, "chunked", d->chunked);
    entry_bool(w, "readout", 0);
    entry_bool(w, "finite", is_integer(d->state_dtype));
    write_text(w, "spec");
    write_map(w, 18);
    write_text(w, "identity");
    write_map(w, 6);
    for (int i = 0; i < 5; i++)
        entry_text(w, texts[i].name, texts[i].text ? texts[i].text : "");
    entry_bool(w, "simulated", d->simulated);
    entry_int(w, "inputs", d->inputs);
    entry_int(w, "nodes", d->nodes);
    entry_text(w, "dtype", wide ? "float64" : "float32");
    write_range(w, "input_range", d->input_range);
    write_range(w, "state_range", d->state_range);
    entry_int(w, "max_batch", d->max_batch);
    entry_text(w, "continuity", d->continuity);
    entry_int(w, "memory_steps", d->memory_steps);
    entry_double(w, "step_period_s", d->step_period_s);
    entry_double(w, "reset_time_s", d->reset_time_s);
    entry_text(w, "clock", "host");
    entry_bool(w, "snapshot", d->state_bytes > 0);
    entry_bool(w, "settable", d->settable);
    entry_bool(w, "programmable", 0);
    entry_bool(w, "deterministic", d->deterministic);
    write_bits(w, "input_bits", d->input_dtype);
    write_bits(w, "output_bits", d->state_dtype);
}

const char *nonsense_in(const declaration *d, size_t max_frame_bytes)
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

int has_sizes_of(const declaration *a, const declaration *b)
{
    return a->inputs == b->inputs && a->nodes == b->nodes && a->max_batch == b->max_batch &&
           a->input_dtype == b->input_dtype && a->state_dtype == b->state_dtype && a->state_bytes == b->state_bytes &&
           a->settable == b->settable;
}

int must_check_inputs(const declaration *d)
{
    double largest = d->input_dtype == DTYPE_INT8 ? 127 : d->input_dtype == DTYPE_INT16 ? 32767 : 2147483647;
    return !is_integer(d->input_dtype) ||
           (d->input_range[0] != d->input_range[1] &&
            (d->input_range[0] > -(largest + 1) * d->input_scale || d->input_range[1] < largest * d->input_scale));
}
