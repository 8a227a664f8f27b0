/* SPDX-License-Identifier: MIT */
/*
 * model.h - abi_fuzz.c's model of the library, for a program whose threads use it at the same
 * time. A wrong answer or byte ends the program.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

/* The backend, and the page that its pinnings are made of. Once, before the threads. */
void model_is_of(const char *backend, size_t page);

/* Makes the calls that a script says, of objects of its own, and ends them. */
void model_run(const uint8_t *script, size_t size);

#endif
