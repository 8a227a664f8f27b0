/* SPDX-License-Identifier: MIT */
/* expect.h - ends a process of a test where something is not so, and says which line asked. */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static inline void expect_at(int line, bool ok)
{
	if (ok)
		return;
	printf("# line %d\n", line);
	fflush(stdout);
	_exit(1);
}

#define expect(ok) expect_at(__LINE__, ok)

#endif
