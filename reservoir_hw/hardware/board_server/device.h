/* What makes a device of this server: five functions. virtual_nodes_device.c is an example to start from.
 *
 * They are called by one thread, one after the other. Each returns 0, or an error code of docs/protocol.md, most often
 * E_DEVICE_FAULT, E_DEVICE_TIMEOUT or E_DEVICE_DISCONNECTED; it then writes into `why` what a person should read.
 * Numbers are as `device_open` declares them, in C order: all of the first sequence, step by step, then the next.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "codec.h"

#define WHY_BYTES 256

/* What a device says about itself. Texts must stay where they are. What is 0 or NULL is not said. */
typedef struct {
    const char *vendor, *model, *serial, *firmware; /* the first two are required */
    const char *content; /* changes with the weights and settings of the device: its fingerprint does, too */
    int simulated;
    uint32_t inputs, nodes;
    uint32_t max_batch;           /* sequences driven at once, at least 1 */
    int input_dtype, state_dtype; /* DTYPE_INT16, ... */
    double input_scale, state_scale; /* value = number x scale; 1 for floating point */
    double input_range[2], state_range[2];
    const char *continuity; /* "held": the state waits for the next run. "replayed": every run begins after a reset */
    int chunked;            /* a run may come in several parts, each longer or shorter */
    int deterministic;
    uint32_t memory_steps; /* steps after which an input no longer matters */
    double step_period_s, reset_time_s;
    size_t state_bytes; /* of one sequence. Not 0: the device has `device_state` */
    int settable;       /* the state is the last row of states, as numbers: TRANSITION works, too */
} declaration;

/* Connects to the hardware, and says what it is. Called once at the start, and for each client. */
int device_open(declaration *d, char why[WHY_BYTES]);

/* Brings the device to rest for `batch` sequences. */
int device_reset(uint32_t batch, char why[WHY_BYTES]);

/* Drives it: inputs (batch, steps, inputs) -> states (batch, steps, nodes). `done` counts the steps that were completed
 * in all sequences: on a fault, their states are told to the client. */
int device_run(uint32_t batch, uint32_t steps, const void *inputs, void *states, uint32_t *done, char why[WHY_BYTES]);

/* Reads the state of `batch` sequences into `state`, or with `set` brings the device there. */
int device_state(uint32_t batch, void *state, int set, char why[WHY_BYTES]);

/* The safe state: light off, voltages 0, connection closed. Called when a client has left, for whatever reason, and at
 * the end; also if `device_open` failed. Until it succeeds no client gets the device. */
int device_close(char why[WHY_BYTES]);

#endif
