#include <cstdio>
#include <string>
#include <vector>

#include "codegen/cpu/compile.h"
#include "codegen/gpu/compile.h"
#include "codegen/library/codegen_api.h"
#include "codegen/loop/loop_ir.h"

namespace {

using namespace torch_remote;

Status read_kernel(const char* text, size_t size, codegen::Kernel* kernel) {
  Status status = codegen::parse_kernel({text, size}, kernel);
  return status.ok() ? codegen::verify(*kernel) : status;
}

int compile_gpu(const char* text, size_t size, uint32_t sm, tr_gpu_code* code) {
  codegen::Kernel kernel;
  codegen::gpu::GpuCode made;
  Status status = read_kernel(text, size, &kernel);
  if (status.ok()) status = codegen::gpu::compile(kernel, {.sm = sm}, {}, &made);
  if (!status.ok()) {
    code->unsupported = status.code() == ErrorCode::kUnsupported ? 1 : 0;
    std::snprintf(code->message, sizeof(code->message), "%s", status.message().c_str());
    return 1;
  }
  const std::vector<uint8_t> recipe = codegen::gpu::encode(made.recipe);
  code->on_image(code->context, reinterpret_cast<const uint8_t*>(made.ptx.c_str()), made.ptx.size() + 1);
  code->on_recipe(code->context, recipe.data(), recipe.size());
  return 0;
}

int compile_cpu(const char* text, size_t size, const char* target, const tr_variant* variant, tr_cpu_code* code) {
  codegen::Kernel kernel;
  codegen::cpu::Code made;
  Status status = read_kernel(text, size, &kernel);
  if (status.ok()) {
    codegen::cpu::CompileOptions options;
    options.target = target;
    options.variant = {variant->streams != 0, variant->columns};
    status = codegen::cpu::compile(kernel, options, &made);
  }
  if (!status.ok()) {
    std::snprintf(code->message, sizeof(code->message), "%s", status.message().c_str());
    return 1;
  }
  code->on_code(code->context, made.bytes.data(), made.bytes.size());
  code->rows = made.rows;
  code->finish = made.finish;
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const tr_codegen_api* torch_remote_codegen_api() {
  static const std::string version(torch_remote::codegen::cpu::compiler_version());
  static const tr_codegen_api api = {sizeof(tr_codegen_api), TR_CODEGEN_ABI, version.c_str(), compile_cpu, compile_gpu};
  return &api;
}
