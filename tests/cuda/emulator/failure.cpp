// SPDX-License-Identifier: Apache-2.0
#include "failure.h"

#include <cstdarg>
#include <cstdio>
#include <unistd.h>

std::string trying;

void fail(const char *format, ...)
{
    char text[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", trying.c_str(), text);
    _exit(1);
}
