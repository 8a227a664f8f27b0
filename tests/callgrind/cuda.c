// SPDX-License-Identifier: MIT
/*
 * cuda.c - a libcuda.so.1 for the C front to find. Nothing calls it.
 */
int cuda_is_here;
