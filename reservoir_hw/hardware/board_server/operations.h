#ifndef OPERATIONS_H
#define OPERATIONS_H

#include "state.h"

/* Does what a request asks for: `answer` and `w` get the reply. 0, or the code of an error with its text in s->why. */
int attend(session *s, const header *h, bytes payload, header *answer, writer *w);
/* The safe state, if the device is open. */
void release(session *s);

#endif
