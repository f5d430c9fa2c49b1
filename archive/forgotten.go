package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// Forgotten is an account of which nothing may be read that was sent until a time: it was
// deleted then, or its author demanded so. What came later is another life of it.
type Forgotten struct {
	DID    string    `json:"did"`
	Until  time.Time `json:"until"` // by the clock of the server that sent the deletion
	Reason string    `json:"reason"`
}

// The reasons to forget an account.
const (
	ReasonDeleted = "deleted" // the account was deleted
	ReasonErased  = "erased"  // its author demanded that everything vanishes
)

// forgottenSuffix ends the names of lists of forgotten accounts, and forgottenFolder has
// them. They have one JSON object per line.
const (
	forgottenFolder = "forgotten/"
	forgottenSuffix = ".forgotten.jsonl"
)

// MaxForgotten is how many accounts a list has at most, and maxForgottenLine bounds one of
// them.
const (
	MaxForgotten     = 10_000
	maxForgottenLine = 4 << 10
	maxList          = MaxForgotten * maxForgottenLine
)

// PutForgotten stores a list of at most MaxForgotten accounts and reads it back. Its name
// is a hash of its content, so storing it twice is storing it once.
func PutForgotten(ctx context.Context, s Store, list []Forgotten) (name string, err error) {
	var b []byte
	for _, f := range list {
		line, err := json.Marshal(f)
		if err != nil {
			return "", fmt.Errorf("encode a list of forgotten accounts: %w", err)
		}
		b = append(append(b, line...), '\n')
	}
	sum := sha256.Sum256(b)
	name = forgottenFolder + hex.EncodeToString(sum[:16]) + forgottenSuffix
	if err := s.Put(ctx, name, bytes.NewReader(b), int64(len(b))); err != nil && !errors.Is(err, ErrExists) {
		return "", err
	}
	_, err = readForgotten(ctx, s, name)
	if errors.Is(err, ErrCorrupt) { // what came out wrong is deleted, and the next attempt puts it again
		err = errors.Join(err, s.Delete(ctx, name))
	}
	return name, err
}

// readForgotten reads a list and checks its hash.
func readForgotten(ctx context.Context, s Store, name string) ([]Forgotten, error) {
	b, err := Fetch(ctx, s, name, maxList)
	if err != nil {
		return nil, err
	}
	list, err := ParseForgotten(name, b)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	return list, nil
}

// ParseForgotten decodes the list in an object of this name.
func ParseForgotten(name string, b []byte) ([]Forgotten, error) {
	if sum := sha256.Sum256(b); forgottenFolder+hex.EncodeToString(sum[:16])+forgottenSuffix != name {
		return nil, corrupt("its name is not its hash")
	}
	var list []Forgotten
	for line := range bytes.Lines(b) {
		var f Forgotten
		if err := json.Unmarshal(line, &f); err != nil || f.DID == "" || f.Until.IsZero() {
			return nil, errors.Join(corrupt("account %d", len(list)), err)
		}
		list = append(list, f)
	}
	return list, nil
}

// ForgottenLists names the lists of a store.
func ForgottenLists(ctx context.Context, s Store) ([]Object, error) {
	var lists []Object
	for o, err := range s.List(ctx, forgottenFolder) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", s, err)
		}
		if strings.HasSuffix(o.Name, forgottenSuffix) {
			lists = append(lists, o)
		}
	}
	return lists, nil
}

// ReadForgotten reads all lists of a store: each account once, until the latest time. A
// list that cannot be read is an error, because what it names must not be shown.
func ReadForgotten(ctx context.Context, s Store) (Forgetting, error) {
	for tries := 0; ; tries++ {
		all, err := readLists(ctx, s)
		if errors.Is(err, ErrNotFound) && tries < 3 {
			continue // it was joined with others meanwhile
		}
		return all, err
	}
}

func readLists(ctx context.Context, s Store) (Forgetting, error) {
	lists, err := ForgottenLists(ctx, s)
	if err != nil {
		return nil, err
	}
	all := Forgetting{}
	for _, o := range lists {
		list, err := readForgotten(ctx, s, o.Name)
		if err != nil {
			return nil, err
		}
		all.add(list)
	}
	return all, nil
}

// UnreadableLists reads each list of a store and returns the errors of those that cannot be
// read, by their names.
func UnreadableLists(ctx context.Context, s Store) (map[string]string, error) {
	lists, err := ForgottenLists(ctx, s)
	if err != nil {
		return nil, err
	}
	unreadable := map[string]string{}
	for _, o := range lists {
		_, err := readForgotten(ctx, s, o.Name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil && !errors.Is(err, ErrNotFound) { // else it was joined with others meanwhile
			unreadable[o.Name] = err.Error()
		}
	}
	return unreadable, nil
}

// JoinForgotten writes lists that are older than a time into as few as possible, if they
// are at least so many, and then deletes them. A reader that misses one lists them again.
// A damaged list stays as it is, and is in the error.
func JoinForgotten(ctx context.Context, s Store, before time.Time, least int) error {
	lists, err := ForgottenLists(ctx, s)
	if err != nil {
		return err
	}
	lists = slices.DeleteFunc(lists, func(o Object) bool { return !o.Modified.Before(before) })
	if len(lists) < least {
		return nil
	}
	all, read, damaged := Forgetting{}, []string{}, []error{}
	for _, o := range lists {
		list, err := readForgotten(ctx, s, o.Name)
		if errors.Is(err, ErrCorrupt) {
			damaged = append(damaged, err)
			continue
		}
		if err != nil {
			return err
		}
		all.add(list)
		read = append(read, o.Name)
	}
	joined := map[string]bool{}
	for some := range slices.Chunk(all.sorted(), MaxForgotten) {
		name, err := PutForgotten(ctx, s, some)
		if err != nil {
			return err
		}
		joined[name] = true
	}
	for _, name := range read {
		if joined[name] {
			continue
		}
		if err := s.Delete(ctx, name); err != nil {
			return err
		}
	}
	return errors.Join(damaged...)
}

// Forgetting is until when accounts are forgotten, by their DIDs.
type Forgetting map[string]Forgotten

func (f Forgetting) add(list []Forgotten) {
	for _, one := range list {
		if one.Until.After(f[one.DID].Until) {
			f[one.DID] = one
		}
	}
}

func (f Forgetting) sorted() []Forgotten {
	all := make([]Forgotten, 0, len(f))
	for _, one := range f {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Forgotten) int { return strings.Compare(a.DID, b.DID) })
	return all
}

// Goes reports whether an account demands that something of it is forgotten.
func (f Forgetting) Goes(s Said) bool {
	one, ok := f[s.Author]
	return ok && !s.At.After(one.Until)
}

// Records yields what remains of a segment's records.
func (f Forgetting) Records(m Manifest, records iter.Seq2[[]byte, error], strip Strip) iter.Seq2[[]byte, error] {
	if len(f) == 0 {
		return records
	}
	return Remaining(m, records, strip, f.Goes)
}

// Said is something that a record of a segment says of an account.
type Said struct {
	Author string
	At     time.Time // when the server sent it
	// Of a record that was written. Empty: it says something else.
	Collection, Key, Revision string
}

// Strip returns what remains of a record of a segment if everything goes for which goes
// returns true: the record itself if all of it stays, and nothing if nothing of it does.
// It asks about everything that may go, and not about what must stay: that an account was
// deleted, or which record was.
type Strip func(m Manifest, record []byte, goes func(Said) bool) [][]byte

// Remaining yields what remains of records.
func Remaining(m Manifest, records iter.Seq2[[]byte, error], strip Strip, goes func(Said) bool) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for record, err := range records {
			if err != nil {
				yield(nil, err)
				return
			}
			for _, rest := range strip(m, record, goes) {
				if !yield(rest, nil) {
					return
				}
			}
		}
	}
}

// authorBytes is the size of the hash of an author in an index of authors.
const authorBytes = 5

// AuthorHash returns the hash by which an account is found in indexes of authors: the
// first 40 bits of its SHA-256. The database has the same function.
func AuthorHash(did string) int64 {
	sum := sha256.Sum256([]byte(did))
	var b [8]byte
	copy(b[8-authorBytes:], sum[:authorBytes])
	return int64(binary.BigEndian.Uint64(b[:])) //nolint:gosec // 40 bits
}

// authorsSuffix replaces that of a segment in the name of its index of authors. That has
// the sorted hashes of all accounts of which something may be forgotten, and a SHA-256.
const (
	segmentSuffix = ".seg.zst"
	authorsSuffix = ".authors"
)

// maxAuthors bounds the authors of a segment.
const maxAuthors = 20_000_000

// AuthorsName returns the name of a segment's index of authors.
func AuthorsName(segment string) string {
	return strings.TrimSuffix(segment, segmentSuffix) + authorsSuffix
}

// IsAuthors reports whether an object's name is that of an index of authors.
func IsAuthors(name string) bool { return strings.HasSuffix(name, authorsSuffix) }

// SegmentName returns the name of the segment that an index of authors belongs to.
func SegmentName(authors string) string {
	return strings.TrimSuffix(authors, authorsSuffix) + segmentSuffix
}

// AuthorsOf reads the accounts of which a segment's records say something that may be
// forgotten: sorted hashes.
func AuthorsOf(m Manifest, records iter.Seq2[[]byte, error], strip Strip) ([]int64, error) {
	seen := map[int64]bool{}
	last, lastHash := "", int64(0)
	for _, err := range Remaining(m, records, strip, func(s Said) bool {
		if s.Author != last {
			last, lastHash = s.Author, AuthorHash(s.Author)
		}
		seen[lastHash] = true
		return false
	}) {
		if err != nil {
			return nil, err
		}
	}
	authors := make([]int64, 0, len(seen))
	for author := range seen {
		authors = append(authors, author)
	}
	slices.Sort(authors)
	return authors, nil
}

// EncodeAuthors returns an index of authors with these hashes.
func EncodeAuthors(authors []int64) []byte {
	b := make([]byte, 0, len(authors)*authorBytes+sha256.Size)
	for _, author := range authors {
		b = append(b, binary.BigEndian.AppendUint64(nil, uint64(author))[8-authorBytes:]...) //nolint:gosec // positive
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// PutAuthors stores the index of a segment's authors.
func PutAuthors(ctx context.Context, s Store, m Manifest, authors []int64) error {
	b := EncodeAuthors(authors)
	if err := s.Put(ctx, AuthorsName(m.Name), bytes.NewReader(b), int64(len(b))); err != nil && !errors.Is(err, ErrExists) {
		return err
	}
	return nil
}

// ReadAuthors reads the index of a segment's authors. It returns ErrNotFound if there is
// none, and ErrCorrupt if it is damaged.
func ReadAuthors(ctx context.Context, s Store, m Manifest) ([]int64, error) {
	b, err := Fetch(ctx, s, AuthorsName(m.Name), maxAuthors*authorBytes+sha256.Size)
	if err != nil {
		return nil, err
	}
	authors, err := ParseAuthors(b)
	if err != nil {
		return nil, fmt.Errorf("authors of %s: %w", m.Name, err)
	}
	return authors, nil
}

// ParseAuthors decodes an index of authors: sorted hashes.
func ParseAuthors(b []byte) ([]int64, error) {
	n := len(b) - sha256.Size
	if n < 0 || n%authorBytes != 0 || sha256.Sum256(b[:n]) != [sha256.Size]byte(b[n:]) {
		return nil, corrupt("the index of authors")
	}
	authors := make([]int64, 0, n/authorBytes)
	var author [8]byte
	for b = b[:n]; len(b) > 0; b = b[authorBytes:] {
		copy(author[8-authorBytes:], b)
		authors = append(authors, int64(binary.BigEndian.Uint64(author[:]))) //nolint:gosec // 40 bits
	}
	return authors, nil
}
