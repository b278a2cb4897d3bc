"""Stop a run as a user would, after so many units."""


class Stopped(Exception):
    """Raised by a progress function, as if somebody stopped the run."""


def stop_after(number):
    def progress(event):
        if event.seconds is not None and event.number >= number:
            raise Stopped

    return progress
