"""A benchmark or a tuner over a real gang, without the job around it."""

from jobs.driver.measurement import Measurement
from jobs.driver.ranks import Ranks


class Observed:
    """A measurement that keeps the steps that it reports, and the lines that it announces."""

    def __init__(self, gang, settings, on_begin=lambda step: None):
        self.begun, self.messages = [], []

        def begin(step, text, best):
            self.begun.append((step, text, best))
            on_begin(step)

        ranks = Ranks(gang, settings.cluster)
        self.measurement = Measurement(ranks, settings, attempt=1, begin=begin, announce=self.messages.append)
