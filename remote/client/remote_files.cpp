#include "remote/client/remote_files.h"

#include "remote/client/channel.h"

namespace torch_remote::remote {

Status RemoteFiles::find(std::string_view path, const KeepWaiting& keep_waiting, FoundFile* file) {
  flatbuffers::FlatBufferBuilder& builder = channel_.builder;
  const auto encode = [&] {
    builder.Finish(wire::CreateStatFile(builder, builder.CreateString(path.data(), path.size())));
  };
  Frame frame;
  OpError none;  // this reply has no error
  if (Status status = channel_.ask(wire::Type::kStatFile, encode, keep_waiting, &frame, &none); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::StatFileReply>(frame.control.data());  // verified on receipt
  *file = {};
  if (const wire::FileVersion* version = reply->version()) {
    file->readable = true;
    file->version = {version->size(), version->inode(), version->mtime_ns()};
  }
  file->allowed = reply->allowed();
  if (reply->reason()) file->reason = reply->reason()->str();
  return {};
}

Status RemoteFiles::read(std::string_view path, const FileVersion& version, uint64_t offset, uint64_t size,
                         uint64_t* id) {
  flatbuffers::FlatBufferBuilder& builder = channel_.builder;
  const auto encode = [&] {
    *id = channel_.next_id++;
    const wire::FileVersion its(version.size, version.inode, version.mtime_ns);
    const auto name = builder.CreateString(path.data(), path.size());
    builder.Finish(wire::CreateReadFile(builder, *id, name, &its, offset, size));
  };
  return channel_.send_message(wire::Type::kReadFile, false, nullptr, encode, nullptr);
}

}  // namespace torch_remote::remote
