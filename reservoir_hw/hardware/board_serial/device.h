/* What the board drives: what INFO declares of it, and three functions. In device.c are virtual nodes; put yours there.
 *
 * Inputs and states are int16 counts; DEVICE_SCALE is the value of one. */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdint.h>

#include "../virtual_nodes.h"

#define DEVICE_INPUTS VN_INPUTS
#define DEVICE_NODES VN_NODES
#define DEVICE_SCALE 0.00006103515625f /* 2^-14 */
/* The range of inputs, in counts. */
#ifndef DEVICE_LOWEST
#define DEVICE_LOWEST (-32768L)
#endif
#ifndef DEVICE_HIGHEST
#define DEVICE_HIGHEST 32767L
#endif
#define DEVICE_CONTINUITY 0   /* held */
#define DEVICE_FLAGS 3        /* deterministic, simulated */
#define DEVICE_MEMORY_STEPS 0 /* not known */
#define DEVICE_STEP_PERIOD_S 0.001f
#define DEVICE_RESET_TIME_S 0.001f
/* At most 31 bytes each. */
#define DEVICE_VENDOR "reservoir_hw"
#define DEVICE_MODEL "virtual nodes"
#define DEVICE_SERIAL "c99"
#define DEVICE_FIRMWARE "1"
#define DEVICE_AS_TEXT(number) #number
#define DEVICE_TEXT(number) DEVICE_AS_TEXT(number)
#define DEVICE_CONTENT \
    "VN " DEVICE_TEXT(VN_ETA) " " DEVICE_TEXT(VN_GAMMA) " " DEVICE_TEXT(VN_DECAY) " " DEVICE_TEXT(VN_SEED)

#ifdef __cplusplus
extern "C" {
#endif

/* Brings the device to rest, ready to be driven. */
void device_reset(void);

/* One period. 0, or why it failed: error 12, 13, 14 or 19 of docs/serial-protocol.md; then device_problem has a text. */
uint8_t device_step(const int16_t inputs[DEVICE_INPUTS], int16_t states[DEVICE_NODES]);
extern const char *device_problem;

/* Nothing is driven any more. Also called once when the board is switched on. */
void device_safe(void);

/* An output of the microcontroller, 1 while the device may be driven. You write it, for instance with an LED. */
void drive_enable(uint8_t level);

#ifdef __cplusplus
}
#endif

#endif
