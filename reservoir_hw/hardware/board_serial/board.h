/* A board at the end of a serial line: docs/serial-protocol.md in portable C99.
 *
 * It needs a UART (uart.h), a device (device.h), about twice BOARD_FRAME_BYTES of memory, and nothing of an operating
 * system. One board per program. */
#ifndef BOARD_H
#define BOARD_H

#ifndef BOARD_FRAME_BYTES
#define BOARD_FRAME_BYTES 256 /* the longest body, 256 to 65535 */
#endif
#ifndef BOARD_LEASE_MS
#define BOARD_LEASE_MS 2000 /* the device is safe if its host is silent for so long, 100 to 65535 */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Once, when the board is switched on: the device goes to its safe state. */
void board_begin(void);

/* Again and again: takes what has come over the line, answers, and looks at the lease. */
void board_poll(void);

#ifdef __cplusplus
}
#endif

#endif
