/* SPDX-License-Identifier: MIT */
/* What the self-tests of all doubles share: TAP output, children. */
#ifndef SELFTEST_TAP_H
#define SELFTEST_TAP_H

/* One TAP line. The test goes on with the value of got. */
long tap_is_at(long got, long want, const char *what, const char *file, int line);
int tap_end(void);

#define IS_OF(got, want, what) tap_is_at((long)(got), (long)(want), what, __FILE__, __LINE__)
#define IS(got, want) IS_OF(got, want, #got " is " #want)
#define TRUE(cond) IS(!!(cond), 1)

/* Run fn in a child; its status, or -signal. */
int in_child(int (*fn)(void *), void *arg);

#endif
