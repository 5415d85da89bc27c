"""Files of any kind: told by their bytes, read within limits, and never an exception."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent.errors import UsageError
from fsm_agent.observations import text
from fsm_agent.observations.given import load, safe_name
from fsm_agent.observations.read import read
from fsm_agent.observations.reading import Limits, Reading
from fsm_agent.observations.sniff import sniff
from fsm_agent.run.content import File, Part
from fsm_agent.run.files import in_words
from tests import files


async def read_any(data: bytes, **limits: Any) -> Reading:
    return await read(data, sniff(data), Limits(**limits))


# -- what it is -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind", "media_type"),
    [
        (files.png(), "image", "image/png"),
        (files.picture("JPEG"), "image", "image/jpeg"),
        (files.picture("GIF"), "image", "image/gif"),
        (files.picture("WEBP"), "image", "image/webp"),
        (files.picture("BMP"), "image", "image/bmp"),
        (files.picture("TIFF"), "image", "image/tiff"),
        (files.pdf(["x"]), "pdf", "application/pdf"),
        (b"\n\n" + files.pdf(["x"]), "pdf", "application/pdf"),
        (files.wav(), "audio", "audio/wav"),
        (files.film(), "video", "video/mp4"),
        (b"ID3\x04" + b"\0" * 40, "audio", "audio/mpeg"),
        (b"\xff\xfb\x90\x64" + b"\0" * 40, "audio", "audio/mpeg"),
        (b"fLaC" + b"\0" * 40, "audio", "audio/flac"),
        (b"OggS" + b"\0" * 40, "audio", "audio/ogg"),
        (b"\0\0\0\x20ftypM4A " + b"\0" * 40, "audio", "audio/mp4"),
        (b"\0\0\0\x20ftypheic" + b"\0" * 40, "image", "image/heic"),
        (b"\x1aE\xdf\xa3" + b"\0" * 40, "video", "video/webm"),
        (b"RIFF\0\0\0\0AVI " + b"\0" * 40, "video", "video/x-msvideo"),
        (b"PK\x03\x04" + b"\0" * 40, "unknown", "application/zip"),
        (b"\x7fELF" + b"\0" * 40, "unknown", "application/x-executable"),
        (b"\0\1\2\3 binary", "unknown", "application/octet-stream"),
        (b"plain words\n", "text", "text/plain"),
        (b"", "text", "text/plain"),
        ("in UTF-16".encode("utf-16"), "text", "text/plain"),
        ("文字".encode("gb18030"), "text", "text/plain"),
        (b"<!DOCTYPE html><p>x", "text", "text/html"),
        (b"<svg onload='x'>", "text", "image/svg+xml"),
        (b"BM is how this text begins, and it goes on for a while", "text", "text/plain"),
    ],
)
def test_a_type_is_told_by_the_bytes(data: bytes, kind: str, media_type: str) -> None:
    assert sniff(data) == (kind, media_type)


@given(st.binary(max_size=300))
def test_any_bytes_have_a_type(data: bytes) -> None:
    assert sniff(data).media_type


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "told", "encoding", "is_sure"),
    [
        ("Grüße, 世界".encode(), "Grüße, 世界", "utf-8", True),
        ("mark".encode("utf-8-sig"), "mark", "utf-8", True),
        ("wide ü".encode("utf-16"), "wide ü", "utf-16", True),
        ("Grüße aus Köln".encode("cp1252"), "Grüße aus Köln", "cp1252", False),
        (
            "合同应当在三十天内履行。".encode("gb18030"),
            "合同应当在三十天内履行。",
            "gb18030",
            False,
        ),
        (b"one\r\ntwo\0", "one\ntwo", "utf-8", True),
    ],
)
def test_text_is_read_in_its_encoding(data: bytes, told: str, encoding: str, is_sure: bool) -> None:
    reading = text.read(data, Limits())

    assert (reading.text, reading.facts["encoding"]) == (told, encoding)
    assert (reading.confidence == 100) is is_sure


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode), st.integers(1, 60))
def test_any_bytes_are_some_text_within_the_limit(data: bytes, most: int) -> None:
    reading = text.read(data, Limits(text_chars=most))

    assert len(reading.text) <= most + 60
    reading.text.encode()


def test_a_long_text_says_how_much_is_missing_and_is_not_read_whole() -> None:
    reading = text.read("ü".encode() * 10_000_000, Limits(text_chars=100))

    assert reading.text.startswith("ü" * 100 + "\n[… ")
    assert "not shown" in reading.text


# -- what is decoded, in a process of its own -----------------------------------------------------


async def test_a_picture_that_is_small_goes_as_it_is() -> None:
    data = files.png(20, 10)

    reading = await read_any(data)

    (picture,) = reading.pictures
    assert (picture.media_type, picture.data) == ("image/png", data)
    assert reading.facts == {"width": 20, "height": 10}
    assert reading.problem == ""


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (files.picture("BMP"), "image/jpeg"),
        (files.picture("TIFF"), "image/jpeg"),
        (files.picture("GIF"), "image/png"),
        (files.picture("JPEG", 3_000, 400), "image/jpeg"),
    ],
)
async def test_other_pictures_are_made_what_models_take(data: bytes, media_type: str) -> None:
    (picture,) = (await read_any(data)).pictures

    assert picture.media_type == media_type
    again = await read_any(picture.data)
    assert max(again.facts["width"], again.facts["height"]) <= Limits().side  # type: ignore[type-var]


async def test_a_picture_is_turned_as_its_camera_says() -> None:
    (picture,) = (await read_any(files.turned_jpeg(40, 20))).pictures

    assert (await read_any(picture.data)).facts == {"width": 20, "height": 40}


async def test_a_picture_that_promises_gigabytes_is_refused_by_its_header() -> None:
    reading = await read_any(files.png_bomb())

    assert reading.pictures == ()
    assert "60000 x 60000 pixels" in reading.problem


async def test_the_text_of_a_pdf_comes_with_its_page_numbers() -> None:
    reading = await read_any(
        files.pdf(["The first page has these words.", "And the second these."])
    )

    assert "--- page 1 ---\nThe first page has these words." in reading.text
    assert "--- page 2 ---\nAnd the second these." in reading.text
    assert reading.facts == {"pages": 2}
    assert (reading.confidence, reading.pictures) == (95, ())


async def test_a_scanned_pdf_is_shown_and_its_text_is_not_relied_on() -> None:
    reading = await read_any(files.pdf(["", "", ""]), pictures=2)

    assert len(reading.pictures) == 2
    assert reading.confidence < 50


async def test_only_so_many_pages_are_read() -> None:
    reading = await read_any(files.pdf(["Some words are on this page."] * 9), pages=4)

    assert "--- page 4 ---" in reading.text
    assert "--- page 5 ---" not in reading.text
    assert reading.problem == "only the first 4 of 9 pages were read"


async def test_a_pdf_that_swells_ends_its_reader_and_nothing_else() -> None:
    swelling = files.pdf(["x"], bomb_bytes=600 << 20)
    assert len(swelling) < 1 << 20

    reading = await read_any(swelling, memory_mb=300)

    assert reading.problem or reading.confidence < 50


async def test_a_sound_is_measured() -> None:
    reading = await read_any(files.wav(2.0))

    assert reading.facts["seconds"] == pytest.approx(2.0)
    assert reading.facts["audio"] == "pcm_s16le"
    assert (reading.text, reading.problem) == ("", "")


async def test_a_film_is_shown_by_some_of_its_frames() -> None:
    reading = await read_any(files.film(6), pictures=3)

    assert reading.facts["width"] == 64
    assert len(reading.pictures) == 3
    assert len({picture.data for picture in reading.pictures}) == 3


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04" + b"\0" * 40, "application/zip are not read"),
        (files.png()[:40], "damaged"),
        (b"%PDF-1.4 and nothing else", "damaged"),
        (b"ID3\x04" + b"\0" * 400, "damaged"),
        (b"\0\0\0\x20ftypmp42" + b"\0" * 400, "damaged"),
    ],
)
async def test_what_cannot_be_read_says_why(data: bytes, problem: str) -> None:
    reading = await read_any(data)

    assert problem in reading.problem
    assert reading.text == ""


async def test_a_file_above_the_limit_is_not_decoded() -> None:
    assert "at most 10 are read" in (await read_any(files.png(), file_bytes=10)).problem


async def test_a_reader_that_takes_too_long_is_ended() -> None:
    assert "longer than 0.01 s" in (await read_any(files.png(), read_s=0.01)).problem


@pytest.mark.parametrize("make", [files.png, lambda: files.pdf(["words"]), files.wav, files.film])
async def test_damage_anywhere_is_a_reading_and_no_error(make: Any) -> None:
    whole, rng = make(), random.Random(7)
    for _ in range(3):
        data = bytearray(whole)
        for _ in range(8):
            data[rng.randrange(12, len(data))] = rng.randrange(256)

        assert isinstance(await read_any(bytes(data)), Reading)


# -- how it is given and told ---------------------------------------------------------------------


def test_files_are_loaded_by_path_or_given_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")

    loaded = load([tmp_path / "a.txt", str(tmp_path / "a.txt"), ("x/b.txt", b"two")], Limits())

    assert loaded == [("a.txt", b"one"), ("a.txt", b"one"), ("b.txt", b"two")]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (["http://127.0.0.1/secret.png"], "is no file"),
        (["/"], "is a folder"),
        (["/dev/zero"], "is no file"),
        ([("big", b"x" * 11)], "at most 10 are taken"),
        ([("a", b"")] * 3, "at most 2"),
        ("a.txt", "Give a list"),
    ],
)
def test_what_is_no_file_is_refused_with_a_word(given_: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(given_, Limits(file_bytes=10, files=2))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=300))
def test_a_name_stays_on_one_line_and_within_its_brackets(name: str) -> None:
    safe = safe_name(name)

    assert 1 <= len(safe) <= 120
    assert not set(safe) & set("/\\\n\r[]\u202e\u200b")


def test_a_part_in_words_says_what_it_is_and_how_far_to_trust_it() -> None:
    file = File("scan.pdf", "d" * 64, 1_234)
    part = Part(file, "pdf", "application/pdf", "TOTAL 7", (), 20, {"pages": 3}, "page 2 is torn")

    assert in_words(part).splitlines() == [
        "[file scan.pdf, application/pdf, 1,234 bytes, pages 3]",
        "[not all of it is here: page 2 is torn]",
        "[the text was read with a confidence of 20 %: where it matters, ask the user]",
        "TOTAL 7",
        "[end of scan.pdf]",
    ]
