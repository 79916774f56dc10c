// A ledger in a volume: `ledger IMAGE` adds an entry, durably, and tells how many there are.
//
//     c++ -std=c++17 ledger.cpp $(pkg-config --cflags --libs syncline)
//
// Handles are owned by objects here: what is opened is closed on every way out, and an error is an exception.
#include <syncline/syncline.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

// The number of bytes, or what else a call has returned; an exception if it has failed.
template <typename Code> Code checked(Code code)
{
	if (code < 0)
		throw std::runtime_error(syncline_last_error());
	return code;
}

struct Closer {
	void operator()(syncline_volume *volume) const { syncline_volume_close(volume); }
	void operator()(syncline_file *file) const { syncline_file_close(file); }
};

using Volume = std::unique_ptr<syncline_volume, Closer>;
using File = std::unique_ptr<syncline_file, Closer>;

Volume open_or_create(const char *image)
{
	syncline_volume *volume = nullptr;
	int code = syncline_volume_open(image, nullptr, &volume);

	if (code == -ENOENT) {
		syncline_create_options create{};
		create.size = sizeof create;
		create.volume_bytes = 64 << 20;
		code = syncline_volume_create(image, &create, nullptr, &volume);
	}
	checked(code);
	return Volume(volume);
}

File open(const Volume &volume, const std::string &path, int flags)
{
	syncline_file *file = nullptr;

	checked(syncline_open(volume.get(), path.c_str(), flags, 0644, &file));
	return File(file);
}

} // namespace

int main(int count, char **arguments)
try {
	if (count != 2)
		throw std::runtime_error("usage: ledger IMAGE");
	Volume volume = open_or_create(arguments[1]);
	const std::string entry = "42 coins\n";
	int64_t at = 0;
	{
		File ledger = open(volume, "/ledger", O_WRONLY | O_CREAT | O_APPEND);
		checked(syncline_file_append(ledger.get(), entry.data(), entry.size(), &at));
		checked(syncline_file_sync(ledger.get()));
	}
	std::cout << "entries: " << at / static_cast<int64_t>(entry.size()) + 1 << std::endl;
	// The destructor cannot tell an error of closing.
	checked(syncline_volume_close(volume.release()));
	return 0;
} catch (const std::exception &error) {
	std::cerr << error.what() << std::endl;
	return 1;
}
