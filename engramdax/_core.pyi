# SPDX-License-Identifier: Apache-2.0
# The C core; c/core.cdef declares what `lib` holds.

from typing import Any

import cffi

ffi: cffi.FFI
lib: Any
