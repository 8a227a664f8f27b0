/* SPDX-License-Identifier: MIT */
/*
 * Devices of the simulated libcuda. Test code: it never ships.
 *
 * Simulated device memory is a memfd. Its name tells what it is:
 *
 *	gdrsim:<device>:cuda	a whole allocation of cuMemAlloc or cuMemCreate
 *	gdrsim:<device>:dmabuf	a part of one, exported as a dma-buf
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include <string.h>

#define SIM_MAX_DEVICES 8
#define SIM_UUID_SIZE 16

/* The UUID of a device. */
static inline void sim_device_uuid(int device, unsigned char uuid[SIM_UUID_SIZE])
{
	memcpy(uuid, "gdrsim-device-", 14);
	uuid[14] = 0;
	uuid[15] = (unsigned char)device;
}

#endif
