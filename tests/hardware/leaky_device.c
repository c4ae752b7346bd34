/* A device of a lab for tests: two leaky integrators in floating point, which fail where a test wants it.
 *
 * The input 0.5 is a fault. Where the file that LEAKY_UNSAFE names exists, the safe state cannot be reached.
 */
#include <stdio.h>
#include <stdlib.h>

#include "device.h"

static double x[2][2];

int device_open(declaration *d, char why[WHY_BYTES])
{
    (void)why;
    *d = (declaration){
        .vendor = "tests", .model = "leaky", .inputs = 1, .nodes = 2, .max_batch = 2,
        .input_dtype = DTYPE_FLOAT32, .state_dtype = DTYPE_FLOAT64, .input_scale = 1, .state_scale = 1,
        .input_range = {-1, 1}, .continuity = "held", .step_period_s = 0.001,
    };
    return 0;
}

int device_reset(uint32_t batch, char why[WHY_BYTES])
{
    (void)why;
    memset(x, 0, batch * sizeof x[0]);
    return 0;
}

int device_run(uint32_t batch, uint32_t steps, const void *inputs, void *states, uint32_t *done, char why[WHY_BYTES])
{
    const float *u = inputs;
    double *out = states;
    for (*done = 0; *done < steps; ++*done)
        for (uint32_t i = 0; i < batch; i++) {
            size_t at = (size_t)i * steps + *done;
            if (u[at] == 0.5f) {
                snprintf(why, WHY_BYTES, "the laser went out");
                return E_DEVICE_FAULT;
            }
            for (int k = 0; k < 2; k++)
                out[2 * at + (size_t)k] = x[i][k] = x[i][k] / (2 + k) + u[at];
        }
    return 0;
}

int device_state(uint32_t batch, void *state, int set, char why[WHY_BYTES])
{
    (void)batch, (void)state, (void)set, (void)why;
    return E_NOT_SUPPORTED;
}

int device_close(char why[WHY_BYTES])
{
    FILE *unsafe = getenv("LEAKY_UNSAFE") ? fopen(getenv("LEAKY_UNSAFE"), "r") : NULL;
    if (!unsafe)
        return device_reset(2, why);
    fclose(unsafe);
    snprintf(why, WHY_BYTES, "the shutter is stuck");
    return E_DEVICE_FAULT;
}
