"""What can go wrong with the projections, apart from the log itself (`eventlog.errors`)."""


class ProjectionError(Exception):
    """The message is for people: what, where, and what would be right."""


class DatabaseLocked(ProjectionError):
    """Another process writes the file."""


class DatabaseUnusable(ProjectionError):
    """There is a file, but not with our tables as this version makes them."""


class QuestionFailed(ProjectionError):
    """A question in SQL is wrong, asks for more than reading, or took too long."""
