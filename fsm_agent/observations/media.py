"""Sound and film: how long they are and what they are made of; of films, some key frames."""

from __future__ import annotations

import io

import av

from .reading import Limits, Picture, Reading, Unreadable

MIN_GAP_S = 1.0  # between two frames that are shown


def read(data: bytes, limits: Limits) -> Reading:
    """What the container says, and the pictures. Raises Unreadable."""
    try:
        # Bytes only: a playlist or a file that names others finds nothing to open.
        options = {"protocol_whitelist": "", "enable_drefs": "0"}
        with av.open(
            io.BytesIO(data), "r", metadata_errors="replace", options=options
        ) as container:
            return _read(container, limits)
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        raise Unreadable("it is damaged, or of a kind that is not known") from error


def _read(container: av.container.InputContainer, limits: Limits) -> Reading:
    facts: dict[str, int | float | str] = {}
    if container.duration:
        facts["seconds"] = round(container.duration / av.time_base, 2)
    if container.streams.audio:
        sound = container.streams.audio[0].codec_context
        facts |= {"audio": sound.name, "sample_rate": sound.sample_rate or 0}
    if not container.streams.video:
        if not container.streams.audio:
            raise Unreadable("there is neither sound nor a picture in it")
        return Reading(confidence=0, facts=facts)
    film = container.streams.video[0]
    facts |= {"video": film.codec_context.name, "width": film.width, "height": film.height}
    if film.width * film.height > limits.pixels:
        raise Unreadable(f"it has {film.width} x {film.height} pixels")
    return Reading(pictures=_frames(container, film, limits), confidence=50, facts=facts)


def _frames(
    container: av.container.InputContainer, film: av.VideoStream, limits: Limits
) -> tuple[Picture, ...]:
    """Key frames, spread over the film; what is damaged is left out."""
    try:
        from .image import encoded
    except ImportError:
        return ()
    seconds = float((container.duration or 0) / av.time_base)
    gap_s = max(MIN_GAP_S, seconds / limits.pictures)
    film.codec_context.skip_frame = "NONKEY"
    pictures: list[Picture] = []
    try:
        for frame in container.decode(film):
            if len(pictures) == limits.pictures:
                break
            if (frame.time or 0.0) >= len(pictures) * gap_s:
                picture = frame.to_image()  # type: ignore[no-untyped-call]
                pictures.append(encoded(picture, limits.side))
    except av.error.FFmpegError:
        pass
    return tuple(pictures)
