-- Made elsewhere at the same time: this file gives way to it.
SELECT;
