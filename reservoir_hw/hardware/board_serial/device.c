#include "device.h"

static virtual_nodes nodes;
const char *device_problem = "";

void device_reset(void)
{
    vn_reset(&nodes);
    drive_enable(1);
}

uint8_t device_step(const int16_t inputs[DEVICE_INPUTS], int16_t states[DEVICE_NODES])
{
#ifdef DEVICE_FAILS_AT /* a planned fault, for tests */
    static uint32_t count;
    if (++count == DEVICE_FAILS_AT) {
        device_problem = "a planned fault";
        return 13;
    }
#endif
    vn_step(&nodes, inputs);
    memcpy(states, nodes.states, sizeof nodes.states);
    return 0;
}

void device_safe(void)
{
    vn_init(&nodes);
    drive_enable(0);
}
