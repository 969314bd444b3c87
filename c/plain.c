// SPDX-License-Identifier: Apache-2.0
// Plain calls: a gather whose arrays are examined here, in a fraction of the time that Python takes for it; and pending
// gathers, which own what they read and write. A module of Python's beside cffi's, in the same library
// (engramdax/plain.py), of the stable ABI.
//
// Each function that looks at arrays takes the usual case alone. It answers None where anything is unusual or wrong,
// and has done nothing then; whoever calls it looks again in Python, which knows all kinds of arrays and what to say of
// bad ones. Nothing of an array is kept from call to call: places and shapes are read anew each time, since an array
// may get other memory.
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "dlpack.h"
#include "gather.h"

enum { MOST_DIMENSIONS = 8 }; // of tensors

// Looked up once.
static PyObject *ndarray, *int32, *int64;  // numpy's
static PyObject *name_dtype, *name_stream; // of attributes

// torch.Tensor, once one was met, and its interface, which torch has from 2.10 on. Not types made from it, which may
// answer otherwise than their memory is.
static PyObject *tensor_type;
static const struct dlpack_exchange *tensors;

// NULL without an exception where there is none; a KeyboardInterrupt and its like, which may come in any code of
// Python's, stays set.
static PyObject *attribute_or_null(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (!value && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return value;
}

// The dtype of numpy's array, which the array keeps alive; NULL for anything else.
static PyObject *dtype_of(PyObject *array)
{
    PyObject *dtype = (PyObject *)Py_TYPE(array) == ndarray ? attribute_or_null(array, name_dtype) : NULL;
    Py_XDECREF(dtype);
    return dtype;
}

static bool says(PyObject *object, const char *text)
{
    return PyUnicode_CheckExact(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

// Add `flag` where an option says so; false where it says neither.
static bool read_option(PyObject *option, const char *without, const char *with, int flag, int *ret)
{
    if (says(option, without))
        return true;
    *ret |= flag;
    return says(option, with);
}

static bool number_of_threads(PyObject *object, int *ret)
{
    *ret = 0;
    if (object == Py_None)
        return true;
    const long number = PyLong_CheckExact(object) ? PyLong_AsLong(object) : 0;
    if (PyErr_Occurred())
        PyErr_Clear();
    *ret = (int)number;
    return number >= 1 && number <= ED_MAX_WORKERS;
}

// Whether `out` takes a row for each of the ids, and ids count within heads where they are to.
static bool shapes_fit(const struct ed_table *table, const Py_buffer *ids, const Py_buffer *out, int flags)
{
    if (out->ndim != ids->ndim + 1 || (uint64_t)(out->shape[ids->ndim] * out->itemsize) != table->row_bytes)
        return false;
    if (ids->ndim && memcmp(ids->shape, out->shape, (size_t)ids->ndim * sizeof *ids->shape))
        return false;
    return !(flags & ED_PER_HEAD) ||
           (table->head_count && ids->ndim && (uint64_t)ids->shape[ids->ndim - 1] == table->head_count);
}

// gather(table, dtype, ids, out, threads, per_head, invalid, engine): as Table.gather of the `struct ed_table` at that
// address, for a dense `out` of that dtype. Gives an ed_outcome.
static PyObject *gather(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "gather takes 8 arguments");
        return NULL;
    }
    PyObject *const ids = arguments[2], *const out = arguments[3], *const per_head = arguments[5];
    const struct ed_table *table = PyLong_AsVoidPtr(arguments[0]);
    if (!table)
        return NULL;
    PyObject *const dtype = dtype_of(ids);
    int threads, engine = ED_TEAM, flags = (dtype == int64 ? ED_IDS_64 : 0) | (per_head == Py_True ? ED_PER_HEAD : 0);
    if (!dtype || (dtype != int64 && dtype != int32) || dtype_of(out) != arguments[1] ||
        !number_of_threads(arguments[4], &threads) || !PyBool_Check(per_head) ||
        !read_option(arguments[6], "raise", "zero", ED_INVALID_ZERO, &flags) ||
        !read_option(arguments[7], "team", "openmp", ED_OPENMP, &engine))
        Py_RETURN_NONE;
    Py_buffer from, to;
    if (PyObject_GetBuffer(ids, &from, PyBUF_ND)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (PyObject_GetBuffer(out, &to, PyBUF_ND | PyBUF_WRITABLE)) {
        PyErr_Clear();
        PyBuffer_Release(&from);
        Py_RETURN_NONE;
    }
    int outcome = -1;
    if (shapes_fit(table, &from, &to, flags)) {
        Py_BEGIN_ALLOW_THREADS;
        outcome = ed_gather_one(table, from.buf, (uint64_t)(from.len / from.itemsize), flags, to.buf, threads, engine);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&to);
    PyBuffer_Release(&from);
    if (outcome < 0)
        Py_RETURN_NONE;
    return PyLong_FromLong(outcome);
}

// A pending gather and what it reads and writes; the capsule that Python holds owns both. Nothing of this may be lost
// on the way to Python, not even where the handler of a signal raises there: the team would go on writing into an array
// that nobody has any more.
struct owned {
    struct ed_pending *pending; // NULL once somebody waits for it
    PyObject *kept;
};

static struct owned *owned_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, "engramdax.pending");
}

static void drop_owned(PyObject *capsule)
{
    struct owned *owned = owned_of(capsule);
    if (owned->pending) {
        Py_BEGIN_ALLOW_THREADS;
        ed_pending_drop(owned->pending);
        Py_END_ALLOW_THREADS;
    }
    Py_DECREF(owned->kept);
    free(owned);
}

// start(request, threads, kept): ed_gather_start() with the `struct ed_request` at that address; `kept` is what the
// request's memory lives as long as. Gives a capsule, which drops the gather if nobody waits for it.
static PyObject *start(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "start takes 3 arguments");
        return NULL;
    }
    const struct ed_request *request = PyLong_AsVoidPtr(arguments[0]);
    const long threads = PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred())
        return NULL;
    struct owned *owned = calloc(1, sizeof *owned);
    PyObject *const capsule = owned ? PyCapsule_New(owned, "engramdax.pending", drop_owned) : NULL;
    if (!capsule) {
        free(owned);
        return PyErr_NoMemory();
    }
    owned->kept = Py_NewRef(arguments[2]);
    Py_BEGIN_ALLOW_THREADS;
    owned->pending = ed_gather_start(request, (int)threads);
    Py_END_ALLOW_THREADS;
    if (owned->pending)
        return capsule;
    Py_DECREF(capsule);
    return PyErr_NoMemory();
}

// done(capsule): whether it is pending, with nothing left to do.
static PyObject *done(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    const struct owned *owned = count == 1 ? owned_of(arguments[0]) : NULL;
    if (!owned) {
        PyErr_SetString(PyExc_TypeError, "done takes a capsule");
        return NULL;
    }
    return PyBool_FromLong(owned->pending && ed_pending_done(owned->pending));
}

// wait(capsule): an ed_outcome; None where somebody waited before.
static PyObject *wait(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    struct owned *owned = count == 1 ? owned_of(arguments[0]) : NULL;
    if (!owned) {
        PyErr_SetString(PyExc_TypeError, "wait takes a capsule");
        return NULL;
    }
    struct ed_pending *const pending = owned->pending;
    if (!pending)
        Py_RETURN_NONE;
    owned->pending = NULL;
    int outcome;
    Py_BEGIN_ALLOW_THREADS;
    outcome = ed_pending_wait(pending);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(outcome);
}

static const struct dlpack_exchange *exchange_of(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    // What it points to lives as long as the process.
    const struct dlpack_exchange *found = capsule ? PyCapsule_GetPointer(capsule, DLPACK_EXCHANGE_CAPSULE) : NULL;
    if (!found)
        PyErr_Clear();
    Py_XDECREF(capsule);
    return found && found->major == DLPACK_MAJOR && found->dltensor_from_py_object_no_sync ? found : NULL;
}

static bool is_tensor(PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    if (tensor_type)
        return type == tensor_type && tensors;
    PyObject *name = PyUnicode_FromString("torch"), *torch = name ? PyImport_GetModule(name) : NULL;
    PyObject *known = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    if (known == type) {
        tensor_type = known; // a reference of ours, for good
        known = NULL;
        tensors = exchange_of(type);
    }
    Py_XDECREF(known);
    Py_XDECREF(torch);
    Py_XDECREF(name);
    PyErr_Clear();
    return tensor_type && tensors;
}

// What the form of a call depends on, as words of 64 bits: all but addresses and stream.
struct form_key {
    size_t words;
    int64_t word[1 + 2 * (2 + 2 * MOST_DIMENSIONS)];
};

static void add_word(struct form_key *key, int64_t word)
{
    key->word[key->words++] = word;
}

// Read a tensor's address, and add the rest of it to the key.
static bool read_tensor(PyObject *object, struct form_key *key, struct dlpack_tensor *ret)
{
    if (!is_tensor(object))
        return false;
    if (tensors->dltensor_from_py_object_no_sync(object, ret)) { // it has no memory of its own
        PyErr_Clear();
        return false;
    }
    if (ret->ndim > MOST_DIMENSIONS || (ret->ndim && !ret->strides))
        return false;
    add_word(key, (int64_t)ret->ndim << 32 | (int64_t)ret->dtype_lanes << 16 | ret->dtype_bits << 8 | ret->dtype_code);
    add_word(key, (int64_t)ret->device_type << 32 | (uint32_t)ret->device_id);
    for (int i = 0; i < ret->ndim; i++) {
        add_word(key, ret->shape[i]);
        add_word(key, ret->strides[i]);
    }
    return true;
}

static bool read_format(PyObject *format, PyObject *per_head, struct form_key *key)
{
    static const char *const formats[] = {"raw", "bf16", "fp16"};
    for (int i = 0; i < 3; i++) {
        if (says(format, formats[i])) {
            add_word(key, i << 1 | (per_head == Py_True));
            return PyBool_Check(per_head);
        }
    }
    return false;
}

static PyObject *bytes_of(const struct form_key *key)
{
    return PyBytes_FromStringAndSize((const char *)key->word, (Py_ssize_t)(key->words * sizeof *key->word));
}

static uint64_t address_of(const struct dlpack_tensor *tensor)
{
    return (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
}

// form_key(ids, out, format, per_head): what cuda_gather() finds the form of such a call by; None for other arrays than
// tensors.
static PyObject *form_key(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "form_key takes 4 arguments");
        return NULL;
    }
    struct form_key key;
    key.words = 0;
    struct dlpack_tensor ids, out;
    if (!read_format(arguments[2], arguments[3], &key) || !read_tensor(arguments[0], &key, &ids) ||
        !read_tensor(arguments[1], &key, &out))
        Py_RETURN_NONE;
    return bytes_of(&key);
}

// A stream's number, of torch's stream or a number; false for any other, or with an exception set.
static bool number_of_stream(PyObject *stream, uint64_t *ret)
{
    PyObject *number = PyLong_CheckExact(stream) ? stream : attribute_or_null(stream, name_stream);
    if (!number)
        return false;
    bool good = PyLong_CheckExact(number);
    if (good)
        *ret = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred()) { // too large, or below 0
        PyErr_Clear();
        good = false;
    }
    if (number != stream)
        Py_DECREF(number);
    return good;
}

// torch's current stream on the device of a tensor.
static bool current_stream(const struct dlpack_tensor *tensor, uint64_t *ret)
{
    void *stream;
    if (tensors->current_work_stream(tensor->device_type, tensor->device_id, &stream)) {
        PyErr_Clear();
        return false;
    }
    *ret = (uint64_t)(uintptr_t)stream;
    return true;
}

// cuda_gather(forms, ids, out, stream, format, per_head): as CudaTable.gather, for a form that `forms` has, a dict of
// `struct ed_cuda_form`s as bytes by form_key(). Gives what ed_cuda_gather() does.
static PyObject *cuda_gather(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "cuda_gather takes 6 arguments");
        return NULL;
    }
    PyObject *const forms = arguments[0], *const stream = arguments[3];
    struct form_key key;
    key.words = 0;
    struct dlpack_tensor ids, out;
    uint64_t handle = 0;
    // The stream first: asking an object for it may run Python, which may do anything to the arrays.
    if (stream != Py_None && !number_of_stream(stream, &handle)) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    if (!read_format(arguments[4], arguments[5], &key) || !read_tensor(arguments[1], &key, &ids) ||
        !read_tensor(arguments[2], &key, &out))
        Py_RETURN_NONE;
    PyObject *const bytes = bytes_of(&key);
    if (!bytes)
        return NULL;
    PyObject *const found = PyDict_GetItemWithError(forms, bytes);
    Py_DECREF(bytes);
    struct ed_cuda_form form;
    if (!found || PyBytes_Size(found) != sizeof form) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    memcpy(&form, PyBytes_AsString(found), sizeof form);
    if (address_of(&out) & (form.align - 1) || (stream == Py_None && !current_stream(&ids, &handle)))
        Py_RETURN_NONE;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = ed_cuda_gather_form(&form, address_of(&ids), address_of(&out), handle);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(result);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {FUNCTION(gather),   FUNCTION(start),       FUNCTION(done),       FUNCTION(wait),
                                  FUNCTION(form_key), FUNCTION(cuda_gather), {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_plain", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit__plain(void)
{
    PyObject *const numpy = PyImport_ImportModule("numpy");
    if (!numpy)
        return NULL;
    ndarray = PyObject_GetAttrString(numpy, "ndarray");
    int32 = PyObject_CallMethod(numpy, "dtype", "s", "int32");
    int64 = PyObject_CallMethod(numpy, "dtype", "s", "int64");
    Py_DECREF(numpy);
    name_dtype = PyUnicode_InternFromString("dtype");
    name_stream = PyUnicode_InternFromString("cuda_stream");
    if (!ndarray || !int32 || !int64 || !name_dtype || !name_stream)
        return NULL;
    return PyModule_Create(&definition);
}
