"""Every setting of the broker and of topics, and their effective values.

``Settings.from_sources(files, pairs, profile)`` reads and checks; ``settings[NUM_IO_THREADS]``
reads a value.  ``definitions`` is the table of broker settings; topic settings are in ``topics``,
because some have the same names as broker settings.  Corresponds to Kafka's ``KafkaConfig``.
"""

from __future__ import annotations

from minibroker.broker.settings import topics as topics
from minibroker.broker.settings.definitions import *  # noqa: F403 - the setting constants
from minibroker.broker.settings.listeners import Listener as Listener
from minibroker.broker.settings.listeners import advertised_endpoints as advertised_endpoints
from minibroker.broker.settings.setting import BROKER_SETTINGS as BROKER_SETTINGS
from minibroker.broker.settings.setting import TOPIC_SETTINGS as TOPIC_SETTINGS
from minibroker.broker.settings.setting import ConnectString as ConnectString
from minibroker.broker.settings.setting import HostPort as HostPort
from minibroker.broker.settings.setting import Scope as Scope
from minibroker.broker.settings.setting import Setting as Setting
from minibroker.broker.settings.settings import ConfigError as ConfigError
from minibroker.broker.settings.settings import SettingEntry as SettingEntry
from minibroker.broker.settings.settings import Settings as Settings
from minibroker.broker.settings.settings import read_pairs as read_pairs
from minibroker.broker.settings.settings import read_properties as read_properties
