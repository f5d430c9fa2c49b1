package directory

// EventsBetweenSQL is the statement of EventsBetween.
const EventsBetweenSQL = eventsBetween
