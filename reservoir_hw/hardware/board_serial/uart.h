/* What the board needs of its microcontroller. You write these three functions. */
#ifndef UART_H
#define UART_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The next byte that has come, or -1 if none has. It does not wait. */
int16_t uart_read(void);

/* Sends a byte. It may wait until there is room for it. */
void uart_write(uint8_t byte);

/* Milliseconds since some time. After 2^32 - 1 comes 0. */
uint32_t clock_ms(void);

#ifdef __cplusplus
}
#endif

#endif
