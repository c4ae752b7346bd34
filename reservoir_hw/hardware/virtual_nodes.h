/* The device of the reference boards: virtual nodes of a Mackey-Glass delay loop, in integers alone.
 *
 * Numbers are Q1.14: 16384 is 1.0. The equations, and the same in Python, stand in emulators/virtual_nodes.py; states
 * are equal to the last bit. Sizes and constants are given when it is compiled: cc -DVN_NODES=50 -DVN_INPUTS=1 ...
 */
#ifndef VIRTUAL_NODES_H
#define VIRTUAL_NODES_H

#include <stdint.h>
#include <string.h>

#ifndef VN_NODES
#define VN_NODES 50
#endif
#ifndef VN_INPUTS
#define VN_INPUTS 1
#endif
#ifndef VN_ETA
#define VN_ETA 15500
#endif
#ifndef VN_GAMMA
#define VN_GAMMA 2048
#endif
#ifndef VN_DECAY
#define VN_DECAY 13414
#endif
#ifndef VN_SEED
#define VN_SEED 1
#endif

#define VN_ONE INT32_C(16384)
#define VN_WIDEST INT32_C(65535)

typedef struct {
    int16_t states[VN_NODES];
    int8_t mask[VN_NODES][VN_INPUTS]; /* 1 or -1 */
} virtual_nodes;

static inline int32_t vn_clip(int32_t number)
{
    return number > VN_WIDEST ? VN_WIDEST : number < -VN_WIDEST ? -VN_WIDEST : number;
}

static inline void vn_reset(virtual_nodes *device)
{
    memset(device->states, 0, sizeof device->states);
}

/* Draws the mask, and brings the device to rest. */
static inline void vn_init(virtual_nodes *device)
{
    uint32_t word = VN_SEED;
    for (int i = 0; i < VN_NODES; i++)
        for (int j = 0; j < VN_INPUTS; j++) {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            device->mask[i][j] = word >> 31 ? -1 : 1;
        }
    vn_reset(device);
}

/* One period: `inputs` has VN_INPUTS numbers, the new states are in device->states. */
static inline void vn_step(virtual_nodes *device, const int16_t *inputs)
{
    int32_t last = device->states[VN_NODES - 1];
    for (int i = 0; i < VN_NODES; i++) {
        int32_t sum = 0;
        for (int j = 0; j < VN_INPUTS; j++)
            sum += device->mask[i][j] * (int32_t)inputs[j];
        /* Divisions round towards zero, in C99 as in the Python. */
        int32_t z = vn_clip(device->states[i] + VN_GAMMA * vn_clip(sum) / VN_ONE);
        int32_t forced = VN_ETA * z / (VN_ONE + (z < 0 ? -z : z));
        last = (VN_DECAY * last + (VN_ONE - VN_DECAY) * forced) / VN_ONE;
        device->states[i] = (int16_t)last;
    }
}

#endif
