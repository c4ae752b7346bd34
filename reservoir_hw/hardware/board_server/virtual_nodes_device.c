/* The example device: ../virtual_nodes.h, for up to VN_BATCH sequences at once. */
#include <stdio.h>

#include "../virtual_nodes.h"
#include "device.h"

#ifndef VN_BATCH
#define VN_BATCH 4
#endif

static virtual_nodes sequences[VN_BATCH];

int device_open(declaration *d, char why[WHY_BYTES])
{
    static char content[96];
    (void)why;
    snprintf(content, sizeof content, "virtual nodes, eta %d, gamma %d, decay %d, seed %lu", VN_ETA, VN_GAMMA, VN_DECAY,
             (unsigned long)VN_SEED);
    *d = (declaration){
        .vendor = "reservoir_hw", .model = "virtual nodes", .serial = "board server", .content = content,
        .simulated = 1, .inputs = VN_INPUTS, .nodes = VN_NODES, .max_batch = VN_BATCH,
        .input_dtype = DTYPE_INT16, .state_dtype = DTYPE_INT16, .input_scale = 1.0 / VN_ONE, .state_scale = 1.0 / VN_ONE,
        .input_range = {-32768.0 / VN_ONE, 32767.0 / VN_ONE}, .state_range = {-32768.0 / VN_ONE, 32767.0 / VN_ONE},
        .continuity = "held", .chunked = 1, .deterministic = 1,
        .state_bytes = sizeof sequences[0].states, .settable = 1,
    };
    for (int i = 0; i < VN_BATCH; i++)
        vn_init(&sequences[i]);
    return 0;
}

int device_reset(uint32_t batch, char why[WHY_BYTES])
{
    (void)why;
    for (uint32_t i = 0; i < batch; i++)
        vn_reset(&sequences[i]);
    return 0;
}

int device_run(uint32_t batch, uint32_t steps, const void *inputs, void *states, uint32_t *done, char why[WHY_BYTES])
{
    const int16_t *in = inputs;
    int16_t *out = states;
    (void)why;
    for (uint32_t i = 0; i < batch; i++)
        for (uint32_t t = 0; t < steps; t++, in += VN_INPUTS, out += VN_NODES) {
            vn_step(&sequences[i], in);
            memcpy(out, sequences[i].states, sizeof sequences[i].states);
        }
    *done = steps;
    return 0;
}

int device_state(uint32_t batch, void *state, int set, char why[WHY_BYTES])
{
    uint8_t *at = state;
    (void)why;
    for (uint32_t i = 0; i < batch; i++, at += sizeof sequences[i].states)
        if (set)
            memcpy(sequences[i].states, at, sizeof sequences[i].states);
        else
            memcpy(at, sequences[i].states, sizeof sequences[i].states);
    return 0;
}

int device_close(char why[WHY_BYTES])
{
    return device_reset(VN_BATCH, why);
}
