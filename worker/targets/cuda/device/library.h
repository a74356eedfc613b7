#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"

// NVIDIA's libraries, which are opened at run time and never closed.
namespace torch_remote::worker::cuda {

struct Library {
  std::string_view name;     // "cuBLASLt"
  std::string_view soname;   // "libcublasLt.so"; the version ".13" or ".12" is appended.
  std::string_view package;  // "nvidia-cublas"; the package of CUDA 12 ends in "-cu12".
  std::string_view folder;   // For CUDA 12: the library's folder in site-packages/nvidia, "cublas".
  // For a library with its own version ("9"), which is appended to the soname. Such a library has one package per CUDA
  // version ("-cu12", "-cu13"), and all of them install into `folder`.
  std::string_view version = {};
};

// Where libraries are looked for, in this order: what the process has open; `folder`; NVIDIA's Python packages next to
// ours; the system's search path; CUDA's folders (CUDA_PATH, CUDA_HOME, /usr/local/cuda).
struct LibrarySearchPath {
  std::string folder;         // A folder; empty: none. It is an error if it lacks the library.
  std::string packages = {};  // The site-packages folder; empty: none.
  int driver = 0;             // The driver's version: 13000. Libraries of later CUDA versions are not tried.
};

struct OpenLibrary {
  void* handle = nullptr;
  std::string path;
  int major = 0;  // The major version of CUDA.
  void* find(const char* symbol) const;
};

// The files to try, in this order, in addition to a library that is open already.
std::vector<std::string> paths_of(const Library& library, const LibrarySearchPath& search_path, int major);

// An error names the package and how to install it.
Status open_library(const Library& library, const LibrarySearchPath& search_path, OpenLibrary* opened);

// Opens the other libraries in `library`'s folder whose names begin with `beginning`. Some libraries look for these
// only in the system's search path.
void open_siblings(const OpenLibrary& library, std::string_view beginning);

}  // namespace torch_remote::worker::cuda
