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

// Forgotten is an account whose data must not be read if it was sent until a time: the
// account was deleted then, or its author requested that. If the account returns, its later
// data may be read.
type Forgotten struct {
	DID    string    `json:"did"`
	Until  time.Time `json:"until"` // by the clock of the server that sent the deletion
	Reason string    `json:"reason"`
}

// The reasons to forget an account.
const (
	ReasonDeleted = "deleted" // the account was deleted
	ReasonErased  = "erased"  // its author requested that everything vanishes
)

// forgottenFolder is the folder of the lists of forgotten accounts, and forgottenSuffix
// ends their names. A list has one JSON object per line.
const (
	forgottenFolder = "forgotten/"
	forgottenSuffix = ".forgotten.jsonl"
)

// MaxForgotten is the maximum number of accounts on a list. maxForgottenLine limits the
// length of one line.
const (
	MaxForgotten     = 10_000
	maxForgottenLine = 4 << 10
	maxList          = MaxForgotten * maxForgottenLine
)

// PutForgotten stores a list of at most MaxForgotten accounts and reads it back. Its name
// is a hash of its content, so storing it twice stores it once.
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
	if errors.Is(err, ErrCorrupt) { // the damaged object is deleted, and the next attempt stores it again
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

// ParseForgotten decodes the list in the object with this name.
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

// ForgottenLists returns the lists of a store.
func ForgottenLists(ctx context.Context, s Store) ([]Object, error) {
	var lists []Object
	for o, err := range s.List(ctx, forgottenFolder) {
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(o.Name, forgottenSuffix) {
			lists = append(lists, o)
		}
	}
	return lists, nil
}

// ReadForgotten reads all lists of a store. If several name an account, the latest time is
// used. A list that cannot be read is an error, because the data of its accounts must not
// be shown.
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
// read, by the names of the lists.
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
		if err != nil && !errors.Is(err, ErrNotFound) { // otherwise it was joined with others meanwhile
			unreadable[o.Name] = err.Error()
		}
	}
	return unreadable, nil
}

// JoinForgotten joins the lists that are older than a time into as few as possible, and
// then deletes them. It does nothing if there are fewer than least. A reader that misses a
// deleted list lists them again. A damaged list stays as it is; the error names it.
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

// Forgetting holds the forgotten accounts, by DID.
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

// Goes reports whether an archived item must be forgotten with its account.
func (f Forgetting) Goes(s Said) bool {
	one, ok := f[s.Author]
	return ok && !s.At.After(one.Until)
}

// Records yields the rest of a segment's records, without the data to forget.
func (f Forgetting) Records(m Manifest, records iter.Seq2[[]byte, error], strip Strip) iter.Seq2[[]byte, error] {
	if len(f) == 0 {
		return records
	}
	return Remaining(m, records, strip, f.Goes)
}

// Said is an item in a segment's record that belongs to an account.
type Said struct {
	Author string
	At     time.Time // when the server sent it
	// For a written record. Empty for other items.
	Collection, Key, Revision string
}

// Strip returns the rest of a segment's record without the items for which goes returns
// true. If all of it stays, that is the record itself; if none of it stays, it is nothing.
// It calls goes for every item that may be forgotten. It does not call goes for what must
// stay: that an account was deleted, or which record was deleted.
type Strip func(m Manifest, record []byte, goes func(Said) bool) [][]byte

// Remaining yields the rest of records, without the items for which goes returns true.
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

// AuthorHash returns the hash under which indexes of authors list an account: the first 40
// bits of its SHA-256. The database has the same function.
func AuthorHash(did string) int64 {
	sum := sha256.Sum256([]byte(did))
	var b [8]byte
	copy(b[8-authorBytes:], sum[:authorBytes])
	return int64(binary.BigEndian.Uint64(b[:])) // 40 bits
}

// authorsSuffix replaces a segment's suffix in the name of its index of authors. The index
// contains the sorted hashes of all accounts with data that may have to be forgotten, and a
// SHA-256.
const (
	segmentSuffix = ".seg.zst"
	authorsSuffix = ".authors"
)

// maxAuthors limits the authors of a segment.
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

// AuthorsOf returns the sorted hashes of the accounts with data in a segment's records that
// may have to be forgotten.
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

// EncodeAuthors returns an index of authors with the given hashes.
func EncodeAuthors(authors []int64) []byte {
	b := make([]byte, 0, len(authors)*authorBytes+sha256.Size)
	for _, author := range authors {
		b = append(b, binary.BigEndian.AppendUint64(nil, uint64(author))[8-authorBytes:]...) // positive
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

// ParseAuthors decodes an index of authors into sorted hashes.
func ParseAuthors(b []byte) ([]int64, error) {
	n := len(b) - sha256.Size
	if n < 0 || n%authorBytes != 0 || sha256.Sum256(b[:n]) != [sha256.Size]byte(b[n:]) {
		return nil, corrupt("the index of authors")
	}
	authors := make([]int64, 0, n/authorBytes)
	var author [8]byte
	for b = b[:n]; len(b) > 0; b = b[authorBytes:] {
		copy(author[8-authorBytes:], b)
		authors = append(authors, int64(binary.BigEndian.Uint64(author[:]))) // 40 bits
	}
	return authors, nil
}
