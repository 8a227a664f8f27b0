/* SPDX-License-Identifier: MIT */
/*
 * progress.h - one line on a terminal: how much of all is done, how long the rest will
 * take, and what is being done. Where stderr is no terminal, or TERM says a dumb
 * one, nothing is written.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stddef.h>

/* How many steps the program has. Without it the line has neither bar nor time. */
void progress_total(size_t steps);

/* Begins the next step, and says what it is. */
__attribute__((format(printf, 1, 2)))
void progress(const char *fmt, ...);

/* How much of the step is done, from 0 to 1. */
void progress_part(double part);

/* Wipes the line: before anything else is written to the terminal, and at the end. */
void progress_wipe(void);

#endif
