// SPDX-License-Identifier: MIT
/* A function of ioctl's name and another version: see watched.c. Nobody calls it. */
int other_ioctl(int fd, unsigned long request, ...);
__asm__(".symver other_ioctl, ioctl@WATCHED_OTHER");

int other_ioctl(int fd, unsigned long request, ...)
{
	(void)request;
	return fd;
}
