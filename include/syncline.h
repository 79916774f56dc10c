/* The ioctls of a mount had this name before there was a library: use <syncline/ioctl.h>. */
#include "syncline/ioctl.h"
